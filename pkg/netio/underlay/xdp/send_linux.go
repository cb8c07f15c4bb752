// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

const (
	// txTries and txPause bound how long a run waits for frames, and frames for a device that takes no more, in tries and
	// milliseconds each. Only a device that has stopped altogether needs that long.
	txTries = 20
	txPause = 1
)

// sender is a lane's sending goroutine's own.
type sender struct {
	port  *Port
	cache *cache
	stamp stamp
	descs [underlay.MaxRunSegments]xsk.Desc
	// queued says that frames were submitted and the kernel not yet called.
	queued bool

	sent, slow, long, lost counter
}

// newSender returns the sender of one of so many lanes. They number their IPv4 packets in turn: without DF, no two packets
// to one destination may have the same identification for as long as fragments can be on their way (RFC 6864, section 4.3).
func newSender(p *Port, index, lanes int) *sender {
	s := &sender{port: p, cache: newCache(p.table, p.wake)}
	s.stamp.id, s.stamp.step = p.firstID+uint16(index), uint16(lanes)
	return s
}

// send sends runs in order, each by the circuit or by the UDP socket.
func (s *sender) send(l *lane, c *laneSocket, runs []underlay.Run) (failed int) {
	first := 0 // of the runs that are to go by the UDP socket
	for i := range runs {
		r := &runs[i]
		headers, from := s.choose(r)
		if headers == nil {
			continue
		}
		failed += s.detour(l, c, runs[first:i])
		first = i + 1
		s.stamp.begin(headers, from, r.To.Dst.Port(), r.ECN)
		if r.Err = s.put(c, r); r.Err != nil {
			failed++
		}
	}
	failed += s.detour(l, c, runs[first:])
	s.flush(c)
	l.leave(c)
	return failed
}

// choose returns the headers and the source port for a run that can go by AF_XDP. All others go by the UDP socket, which refuses
// what is malformed.
func (s *sender) choose(r *underlay.Run) (headers *frameHeader, from uint16) {
	if r.Check() != nil {
		return nil, 0
	}
	e := s.cache.find(r.To)
	if e == nil || e.path.reason != ViaXDP || e.detour {
		return nil, 0
	}
	headers = &e.path.headers
	if longest(r) > headers.max {
		e.detour = true
		s.long.add(1)
		return nil, 0
	}
	if from = s.port.udp.Source(r.Source); from == 0 {
		return nil, 0
	}
	return headers, from
}

// longest is the size of a run's largest datagram.
func longest(r *underlay.Run) (n int) {
	if r.Segments > 1 {
		return r.SegSize
	}
	for _, part := range r.Parts {
		n += len(part)
	}
	return n
}

// detour sends runs by the UDP socket, when those before them have left.
func (s *sender) detour(l *lane, c *laneSocket, runs []underlay.Run) (failed int) {
	if len(runs) == 0 {
		return 0
	}
	s.flush(c)
	s.slow.add(len(runs))
	return l.slow.Send(runs)
}

// put submits the frames of one run, all or none.
func (s *sender) put(c *laneSocket, r *underlay.Run) error {
	descs := s.descs[:r.Segments]
	if !s.reserve(c, descs) {
		s.lost.add(r.Segments)
		return unix.ENOBUFS
	}
	i := 0
	for datagram := range r.Datagrams {
		s.frame(c, &descs[i], datagram)
		i++
	}
	taken := c.socket.Submit(descs)
	s.queued = true
	s.sent.add(taken)
	s.lost.add(len(descs) - taken)
	return nil
}

// frame fills one frame.
func (s *sender) frame(c *laneSocket, d *xsk.Desc, datagram []byte) {
	frame := c.socket.Frame(*d)
	d.Len = uint32(s.stamp.put(frame, datagram))
	if c.offload && c.socket.OffloadChecksum(d, uint16(s.stamp.udp), packet.UDPChecksumOffset) {
		return
	}
	s.stamp.complete(frame)
}

// reserve gets frames for all of descs, or none. When all frames are on their way it has the kernel send them, and waits
// for the device: that is the backpressure of this way out.
func (s *sender) reserve(c *laneSocket, descs []xsk.Desc) bool {
	have := c.socket.Reserve(descs)
	for try := 0; have < len(descs) && try < txTries; try++ {
		if !s.wake(c) {
			break
		}
		n := c.socket.Reserve(descs[have:])
		if have += n; n == 0 {
			rest()
		}
	}
	if have < len(descs) {
		c.socket.Release(descs[:have])
		return false
	}
	return true
}

// flush has the kernel send what was submitted. What the device does not take in time goes with what is sent next, or when it can.
func (s *sender) flush(c *laneSocket) {
	for try := 0; s.queued && try < txTries && s.wake(c) && c.holds(); try++ {
		s.queued = true
		rest()
	}
}

// rest is a pause. There is no event to wait for: POLLOUT says nothing of frames that came back, nor of the device.
func rest() { _, _ = unix.Poll(nil, txPause) }

// wake reports whether the circuit goes on working. What was submitted when it does not is lost, as it would be in the
// queue of a device.
func (s *sender) wake(c *laneSocket) bool {
	s.queued = false
	if err := c.socket.WakeTx(); c.recordError(err) {
		ring(s.port.wake)
	}
	return c.works()
}
