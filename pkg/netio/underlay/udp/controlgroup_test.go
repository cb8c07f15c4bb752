// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestStagedTrainsFitControlSendBuffer sends what a peer may have staged, which nobody sends again.
func TestStagedTrainsFitControlSendBuffer(t *testing.T) {
	const segments, size = 45, 1452
	for name, c := range map[string]Config{"trains": {}, "single datagrams": {NoGSO: true}, "small data buffers": {SendBuffer: 20000}} {
		t.Run(name, func(t *testing.T) {
			slowDevice(t)
			p := open(t, c)
			to := behindSlowDevice(false)
			r := underlay.Run{To: &to, Parts: [][]byte{make([]byte, segments*size)}, SegSize: size, Segments: segments}
			refused, sent := 0, 0
			for ; sent < 1<<20; sent += segments * size {
				if p.SendRun(&r) != nil {
					refused++
				}
			}
			if refused > 0 {
				t.Errorf("%d trains of %d were refused", refused, sent/(segments*size))
			}
		})
	}
}

// TestFullControlSendBufferKeepsItsSize fills it, and sends again when there is room.
func TestFullControlSendBufferKeepsItsSize(t *testing.T) {
	remove := slowDevice(t)
	p := open(t, Config{})
	to := behindSlowDevice(false)
	var fd int
	for fd = range p.groups[controlGroup].Load().sockets {
	}
	size := func() int {
		n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
		expect.NoError(t, err)
		return n
	}
	before := size()
	var err error
	for err == nil {
		err = p.SendTo(&to, make([]byte, 1400))
	}
	if !errors.Is(err, underlay.ErrSendBufferFull) || writable(t, fd) {
		t.Fatalf("sending failed with %v", err)
	}
	remove()
	expect.Eventually(t, "the send buffer has room", func() bool { return writable(t, fd) })
	expect.NoError(t, p.SendTo(&to, make([]byte, 1400)))
	if n := len(p.limits.sockets); size() != before || n != 0 {
		t.Errorf("the send buffer has %d bytes, before %d; %d sockets have limits, want none", size(), before, n)
	}
}

// TestFullLaneRefusesNoControlMessage fills the send buffer of lane 0.
func TestFullLaneRefusesNoControlMessage(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprint("IPv6 ", v6), func(t *testing.T) {
			slowDevice(t)
			p := open(t, Config{SendBuffer: 20000})
			to, lane := behindSlowDevice(v6), p.Lane(0)
			full := []underlay.Run{small(&to, 0, 0)}
			for lane.Send(full) == 0 {
			}
			expect.NoError(t, p.SendTo(&to, make([]byte, 148)))
		})
	}
}
