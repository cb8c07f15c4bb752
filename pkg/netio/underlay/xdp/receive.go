// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

const (
	// rxBatch is the number of frames that are taken from the ring at a time.
	rxBatch = 64
	// maxRecvFrames bounds the frames of one Recv to about 700 KiB. Frames behind them cannot overtake them, but may be
	// urgent.
	maxRecvFrames = 512
)

// receiver is the state of a lane's receiving goroutine.
type receiver struct {
	gather       gatherer
	descs        [rxBatch]xsk.Desc
	xdpTurns     int  // receives since the last read of the UDP socket
	udpReady     bool // the UDP socket has data, or had just now
	coalescer    coalescer
	lastSocket   *laneSocket
	udpDrainLeft int // remaining reads of the UDP socket for datagrams from before lastSocket was set

	received, malformed counter
}

// receive fills rx from an AF_XDP socket, and returns the number of elements used.
func (r *receiver) receive(c *laneSocket, rx []underlay.Datagrams, p *Port) int {
	r.gather.begin(rx, uint32(c.device))
	frames, bad := 0, 0
	for frames < maxRecvFrames && r.gather.room() > 0 {
		n := c.socket.Receive(r.descs[:min(len(r.descs), r.gather.room())])
		if n == 0 {
			break
		}
		frames += n
		bad += r.unpack(c.socket, r.descs[:n], p.port)
		c.socket.Refill(r.descs[:n])
	}
	if frames == 0 {
		c.recordEmpty()
		return 0
	}
	r.received.add(frames - bad)
	r.malformed.add(bad)
	if err := c.socket.WakeRx(); c.recordError(err) {
		notify(p.wake)
	}
	return r.gather.count
}

// unpack copies the frames' datagrams, and returns the number of frames without a datagram for the port.
func (r *receiver) unpack(s *xsk.Socket, descs []xsk.Desc, port uint16) (bad int) {
	for _, d := range descs {
		if f, payload, ok := parseFrame(s.Frame(d), port); ok {
			r.gather.add(&f, payload)
		} else {
			bad++
		}
	}
	return bad
}
