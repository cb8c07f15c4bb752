// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// killable is ropewalk with the given underlay. It stores the running process, so that a test can kill it.
func killable(process *atomic.Pointer[daemon], underlay string) implementation {
	x := ropewalkXDP
	x.start = func(t *testing.T, h *host, ifname string) func() error {
		t.Helper()
		d, stop := launch(t, h, nil, ropewalkBinary.Need(t), "run", "--underlay", underlay, ifname)
		process.Store(d)
		return stop
	}
	return x
}

// TestKilledDaemonDetachesXDPProgram kills a ropewalk over AF_XDP in the middle of a TCP stream. The kernel detaches its XDP program
// with it, so that packets reach the network stack again. The stream continues with the next daemon, first over UDP sockets and then
// over AF_XDP.
func TestKilledDaemonDetachesXDPProgram(t *testing.T) {
	forPairings(t, []pairing{{ropewalkXDP, wireguardGo}}, func(t *testing.T, p pairing) {
		forBothFamilies(t, func(t *testing.T, v6 bool) {
			var process atomic.Pointer[daemon]
			l := newLab(t, p, v6)
			l.left.impl = killable(&process, "xdp")
			l.startOverXDP(t)
			exchange(t, l.left, l.right.inner4.Addr(), 100)
			for _, underlay := range []string{"udp", "xdp", "xdp"} {
				l.left.host.wantProgram(t, l.left.checkDataPath(t, "xdp") == nil)
				l.duringTransfer(t, func() {
					_ = process.Load().end(unix.SIGKILL) // the error only reports the signal
					l.left.stop = nil
					l.left.wantGone(t)
					l.left.host.wantProgram(t, false)
					l.left.impl = killable(&process, underlay)
					l.left.start(t, l.peerOf(l.left))
				})
				l.left.wantDataPath(t, underlay)
			}
			for _, x := range l.xdpSides() {
				l.wantXDPTraffic(t, x)
				x.noErrors(t)
			}
		})
	})
}

// wantProgram waits until an XDP program is attached to the cable, or none if want is false.
func (h *host) wantProgram(t *testing.T, want bool) {
	t.Helper()
	expect.EventuallyNoError(t, "the XDP program on host "+h.name, func() error {
		l, err := h.nl.LinkByName(cable)
		if err != nil {
			return err
		}
		if xdp := l.Attrs().Xdp; (xdp != nil && xdp.Attached) != want {
			return fmt.Errorf("attached: got %t, want %t", !want, want)
		}
		return nil
	})
}
