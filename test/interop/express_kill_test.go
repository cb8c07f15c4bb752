// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// mortal is a ropewalk over the given underlay that can be killed. It stores the process that runs.
func mortal(process *atomic.Pointer[daemon], underlay string) implementation {
	x := express
	x.start = func(t *testing.T, h *host, ifname string) func() error {
		t.Helper()
		d, stop := launch(t, h, nil, ropewalkBinary.Need(t), "run", "--underlay", underlay, ifname)
		process.Store(d)
		return stop
	}
	return x
}

// TestAKilledRopewalkLeavesTheDeviceToTheKernel kills one over AF_XDP in the middle of a TCP stream. Its XDP program is gone with it,
// so that the stack has the packets of whoever comes next: first a ropewalk over sockets, in the end one over AF_XDP again. The
// stream goes on.
func TestAKilledRopewalkLeavesTheDeviceToTheKernel(t *testing.T) {
	forPairings(t, []pairing{{express, wireguardGo}}, func(t *testing.T, p pairing) {
		forBothFamilies(t, func(t *testing.T, v6 bool) {
			var process atomic.Pointer[daemon]
			l := newLab(t, p, v6)
			l.left.impl = mortal(&process, "xdp")
			l.startByExpress(t)
			exchange(t, l.left, l.right.inner4.Addr(), 100)
			for _, underlay := range []string{"udp", "xdp", "xdp"} {
				l.left.host.wantProgram(t, l.left.onWay(t, "xdp") == nil)
				l.inMiddle(t, func() {
					_ = process.Load().end(unix.SIGKILL) // says so
					l.left.stop = nil
					l.left.wantGone(t)
					l.left.host.wantProgram(t, false)
					l.left.impl = mortal(&process, underlay)
					l.left.start(t, l.peerOf(l.left))
				})
				l.left.wantWay(t, underlay)
			}
			for _, x := range l.express() {
				l.wantByXDP(t, x)
				x.noErrors(t)
			}
		})
	})
}

// wantProgram waits until an XDP program is in front of the cable, or none.
func (h *host) wantProgram(t *testing.T, want bool) {
	t.Helper()
	eventually(t, "the XDP program on host "+h.name, patience, func() error {
		l, err := h.nl.LinkByName(cable)
		if err != nil {
			return err
		}
		if xdp := l.Attrs().Xdp; (xdp != nil && xdp.Attached) != want {
			return errors.New("there is none, or one too many")
		}
		return nil
	})
}
