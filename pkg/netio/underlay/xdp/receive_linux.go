// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

const (
	// rxBatch is how many frames are taken from the ring at a time.
	rxBatch = 64
	// rxMost bounds the frames of one Recv, some 700 KiB: what is behind them can overtake none of them, but may be urgent.
	rxMost = 512
)

// receiver is a lane's receiving goroutine's own.
type receiver struct {
	gather gatherer
	descs  [rxBatch]xsk.Desc
	turns  int  // without a look at the UDP socket
	slow   bool // whether there is, or was just now, something at the UDP socket
	last   *laneSocket
	older  int // how often more the UDP socket is looked at for what came before last was there

	received, malformed counter
}

// receive fills rx from an AF_XDP socket, and returns how many elements it used.
func (r *receiver) receive(c *laneSocket, rx []underlay.Datagrams, p *Port) int {
	r.gather.begin(rx, uint32(c.device))
	frames, bad := 0, 0
	for frames < rxMost && r.gather.room() > 0 {
		n := c.socket.Receive(r.descs[:min(len(r.descs), r.gather.room())])
		if n == 0 {
			break
		}
		frames += n
		bad += r.unpack(c.socket, r.descs[:n], p.port)
		c.socket.Refill(r.descs[:n])
	}
	if frames == 0 {
		c.drained()
		return 0
	}
	r.received.add(frames - bad)
	r.malformed.add(bad)
	if err := c.socket.WakeRx(); c.recordError(err) {
		ring(p.wake)
	}
	return r.gather.count
}

// unpack copies what frames hold, and returns how many held nothing for the port. A packet of several frames, which nobody
// asked for, is nothing either.
func (r *receiver) unpack(s *xsk.Socket, descs []xsk.Desc, port uint16) (bad int) {
	more := false
	for _, d := range descs {
		f, payload, ok := parseFrame(s.Frame(d), port)
		part := more || d.More()
		more = d.More()
		if !ok || part {
			bad++
			continue
		}
		r.gather.add(&f, payload)
	}
	return bad
}
