// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// duringTransfer transfers TCP streams and calls change in the middle of the first one.
func (l *lab) duringTransfer(t *testing.T, change func()) {
	t.Helper()
	reached, changed, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	b := bulk{from: l.left, to: l.right, streams: 2, bytes: 256 << 10, halfway: func() error {
		close(reached)
		<-changed
		return nil
	}}
	go func() { result <- b.carry() }()
	func() {
		defer close(changed) // also if change ends the test
		select {
		case <-reached:
			change()
		case err := <-result:
			t.Fatalf("the TCP transfer ended before its middle: %v", err)
		}
	}()
	expect.NoError(t, <-result)
}

// TestUnderlayChangesUnderTrafficWithoutRekey switches between AF_XDP and UDP sockets while TCP streams run.
func TestUnderlayChangesUnderTrafficWithoutRekey(t *testing.T) {
	forPairings(t, []pairing{{ropewalkXDP, ropewalkXDP}, {ropewalkXDP, wireguardGo}}, func(t *testing.T, p pairing) {
		forBothFamilies(t, func(t *testing.T, v6 bool) {
			l := newLab(t, p, v6)
			l.startOverXDP(t)
			exchange(t, l.left, l.right.inner4.Addr(), 100)
			wantHandshakes(t, l)
			shaken := l.left.handshake(t)
			for _, mode := range []string{"udp", "xdp", "udp", "xdp"} {
				for _, x := range l.xdpSides() {
					l.duringTransfer(t, func() {
						x.setUnderlay(t, mode)
						x.wantDataPath(t, mode)
					})
				}
			}
			const untilRekey = 100 * time.Second // REKEY_AFTER_TIME is 120 s; the rest is margin for a slow machine
			if now := l.left.handshake(t); !now.Equal(shaken) && now.Sub(shaken) < untilRekey {
				t.Errorf("another handshake at %s, only %s after the first", now, now.Sub(shaken))
			}
			for _, x := range l.xdpSides() {
				l.wantXDPTraffic(t, x)
			}
		})
	})
}

// TestXDPResumesAfterLinkFlap takes the cable down and up at either end in the middle of a TCP stream.
func TestXDPResumesAfterLinkFlap(t *testing.T) {
	forPairings(t, []pairing{{ropewalkXDP, ropewalkXDP}}, func(t *testing.T, p pairing) {
		forBothFamilies(t, func(t *testing.T, v6 bool) {
			for _, right := range []bool{false, true} {
				t.Run("at "+side(right), func(t *testing.T) {
					l := newLab(t, p, v6)
					l.startOverXDP(t)
					x, _ := l.pick(right)
					l.duringTransfer(t, func() { expect.NoError(t, x.host.flap(cable, l.outer[x])) })
					for _, x := range l.xdpSides() {
						x.wantDataPath(t, "xdp")
						l.wantXDPTraffic(t, x)
					}
				})
			}
		})
	})
}

// flap takes a device down and up again. The kernel removes IPv6 addresses with the link, so flap adds p again.
func (h *host) flap(dev string, p netip.Prefix) error {
	l, err := h.nl.LinkByName(dev)
	if err != nil {
		return err
	}
	if err := errors.Join(h.nl.LinkSetDown(l), h.nl.LinkSetUp(l)); err != nil {
		return err
	}
	if err := h.addAddress(dev, p); !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
