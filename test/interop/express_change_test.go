// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inMiddle runs TCP streams, and change in the middle of the first.
func (l *lab) inMiddle(t *testing.T, change func()) {
	t.Helper()
	reached, changed, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	b := bulk{from: l.left, to: l.right, streams: 2, bytes: 256 << 10, halfway: func() error {
		close(reached)
		<-changed
		return nil
	}}
	go func() { result <- b.carry() }()
	func() {
		defer close(changed) // also when the test ends in there
		select {
		case <-reached:
			change()
		case err := <-result:
			t.Fatalf("TCP ended before its middle: %v", err)
		}
	}()
	must(t, <-result)
}

// TestTheWayChangesUnderTrafficWithinTheSession goes from AF_XDP to sockets and back while TCP streams run.
func TestTheWayChangesUnderTrafficWithinTheSession(t *testing.T) {
	forPairings(t, []pairing{{express, express}, {express, wireguardGo}}, func(t *testing.T, p pairing) {
		forBothFamilies(t, func(t *testing.T, v6 bool) {
			l := newLab(t, p, v6)
			l.startByExpress(t)
			exchange(t, l.left, l.right.inner4.Addr(), 100)
			wantHandshakes(t, l)
			shaken := l.left.handshake(t)
			for _, mode := range []string{"udp", "xdp", "udp", "xdp"} {
				for _, x := range l.express() {
					l.inMiddle(t, func() {
						x.setUnderlay(t, mode)
						x.wantWay(t, mode)
					})
				}
			}
			const untilRekey = 100 * time.Second // and some for a slow machine
			if now := l.left.handshake(t); !now.Equal(shaken) && now.Sub(shaken) < untilRekey {
				t.Errorf("a handshake at %s, and another one at %s", shaken, now)
			}
			for _, x := range l.express() {
				l.wantByXDP(t, x)
			}
		})
	})
}

// TestExpressComesBackWhenTheLinkDoes pulls the cable at either end in the middle of a TCP stream, and puts it back.
func TestExpressComesBackWhenTheLinkDoes(t *testing.T) {
	forPairings(t, []pairing{{express, express}}, func(t *testing.T, p pairing) {
		forBothFamilies(t, func(t *testing.T, v6 bool) {
			for _, right := range []bool{false, true} {
				t.Run("at "+side(right), func(t *testing.T) {
					l := newLab(t, p, v6)
					l.startByExpress(t)
					x, _ := l.pick(right)
					l.inMiddle(t, func() { must(t, x.host.flap(cable, l.outer[x])) })
					for _, x := range l.express() {
						x.wantWay(t, "xdp")
						l.wantByXDP(t, x)
					}
				})
			}
		})
	})
}

// flap takes a device down and up again. IPv6 addresses go with the link, so that one is put back.
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
