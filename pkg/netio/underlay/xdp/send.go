// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

const (
	// txTries and txPause bound how long a run waits for free frames, and submitted frames for the device. They are a
	// number of tries, and milliseconds per try. Only a device that has stopped altogether needs that long.
	txTries = 20
	txPause = 1
)

// sender is the state of a lane's sending goroutine.
type sender struct {
	port   *Port
	cache  *cache
	header runHeader
	descs  [underlay.MaxRunSegments]xsk.Desc
	// queued is set while submitted frames still need a system call to be sent.
	queued bool
	// full are the send buffers of UDP sockets that have refused a run of the current call. They get no more in this call, to keep the order.
	full []sendBuffer

	sent, viaUDP, failed counter // failed: datagrams for which there was no frame
}

// sendBuffer identifies the UDP socket of a source in a send group.
type sendBuffer struct{ source, group int }

// newSender returns the sender of lane index of a port with lanes lanes. The lanes' IPv4 identifications interleave. Without DF, no two
// packets to one destination may share an identification while fragments can be in flight (RFC 6864, section 4.3).
func newSender(p *Port, index, lanes int) *sender {
	s := &sender{port: p, cache: newCache(p.table, p.wake)}
	s.header.id, s.header.idStep = p.firstID+uint16(index), uint16(lanes)
	return s
}

// send sends runs in order, each through the lane socket or the UDP socket.
func (s *sender) send(l *lane, c *laneSocket, runs []underlay.Run) (failed int) {
	s.full = s.full[:0]
	first := 0 // first of the runs that wait for the UDP socket
	for i := range runs {
		r := &runs[i]
		headers, from := s.choose(r)
		if headers == nil {
			continue
		}
		failed += s.sendUDP(l, c, runs[first:i])
		first = i + 1
		s.header.begin(headers, from, r.To.Dst.Port(), r.ECN, s.port.dontFragment.Load())
		if r.Err = s.sendFrames(c, r); r.Err != nil {
			failed++
		}
	}
	failed += s.sendUDP(l, c, runs[first:])
	s.flush(c)
	l.wakeForHeld(c)
	return failed
}

// choose returns the headers and the source port for a run that can use AF_XDP. All others use the UDP socket, which
// rejects malformed runs.
func (s *sender) choose(r *underlay.Run) (headers *frameHeader, from uint16) {
	if r.MayFragment || r.Check() != nil {
		return nil, 0
	}
	e := s.cache.find(r.To)
	if e == nil || e.path.reason != ViaXDP || e.tooLong {
		return nil, 0
	}
	headers = &e.path.headers
	if r.LargestDatagram() > headers.max {
		e.tooLong = true
		return nil, 0
	}
	if from = s.port.Source(r.Source); from == 0 {
		return nil, 0
	}
	return headers, from
}

// sendUDP sends runs through the UDP socket, after the frames before them.
func (s *sender) sendUDP(l *lane, c *laneSocket, runs []underlay.Run) (failed int) {
	if len(runs) == 0 {
		return 0
	}
	s.flush(c)
	first := 0
	for i := range runs {
		if r := &runs[i]; slices.Contains(s.full, sendBuffer{r.Source, r.Group}) {
			failed += 1 + s.passUDP(l, runs[first:i])
			r.Err, r.Sent = underlay.ErrSendBufferFull, 0
			first = i + 1
		}
	}
	return failed + s.passUDP(l, runs[first:])
}

// passUDP passes runs to the UDP socket, and notes the send buffers that are full.
func (s *sender) passUDP(l *lane, runs []underlay.Run) (failed int) {
	if len(runs) == 0 {
		return 0
	}
	s.viaUDP.add(len(runs))
	failed = l.udp.Send(runs)
	for i := 0; i < len(runs) && failed > 0; i++ {
		if r := &runs[i]; errors.Is(r.Err, underlay.ErrSendBufferFull) {
			s.full = append(s.full, sendBuffer{r.Source, r.Group})
		}
	}
	return failed
}

// sendFrames submits the frames of one run, all or none.
func (s *sender) sendFrames(c *laneSocket, r *underlay.Run) error {
	descs := s.descs[:r.Segments]
	if !s.reserve(c, descs) {
		s.failed.add(r.Segments)
		return unix.ENOBUFS
	}
	i := 0
	for datagram := range r.Datagrams {
		s.frame(c, &descs[i], datagram)
		i++
	}
	s.sent.add(c.socket.Submit(descs))
	s.queued = true
	return nil
}

// frame fills one frame.
func (s *sender) frame(c *laneSocket, d *xsk.Desc, datagram []byte) {
	frame := c.socket.Frame(*d)
	d.Len = uint32(s.header.writeFrame(frame, datagram))
	if c.offload && c.socket.OffloadChecksum(d, uint16(s.header.udp), packet.UDPChecksumOffset) {
		return
	}
	s.header.complete(frame)
}

// reserve allocates frames for all of descs, or none. When all frames are in flight it makes the kernel send, and waits
// for the device. This is the backpressure of AF_XDP.
func (s *sender) reserve(c *laneSocket, descs []xsk.Desc) bool {
	have := c.socket.Reserve(descs)
	for try := 0; have < len(descs) && try < txTries; try++ {
		if !s.wakeTx(c) {
			break
		}
		n := c.socket.Reserve(descs[have:])
		if have += n; n == 0 {
			pauseTx()
		}
	}
	if have < len(descs) {
		c.socket.Release(descs[:have])
		return false
	}
	return true
}

// flush makes the kernel send the submitted frames. Frames that the device does not take in time are sent with the next
// ones, or by the receiving goroutine.
func (s *sender) flush(c *laneSocket) {
	for try := 0; s.queued && try < txTries && s.wakeTx(c) && c.hasHeldFrames(); try++ {
		s.queued = true
		pauseTx()
	}
}

// pauseTx sleeps for txPause. There is no event to wait for: POLLOUT reports neither returned frames nor a ready
// device.
func pauseTx() { _, _ = unix.Poll(nil, txPause) }

// wakeTx makes the kernel send, and reports whether the lane socket still works. If it does not, submitted frames are
// lost, as in the queue of a device.
func (s *sender) wakeTx(c *laneSocket) bool {
	s.queued = false
	if err := c.socket.WakeTx(); c.recordError(err) {
		notify(s.port.wake)
	}
	return c.works()
}
