// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestHandshakeTeachesResponderTheEndpoint(t *testing.T) {
	forEachPairing(t, func(t *testing.T, p pairing) {
		for _, fromRight := range p.sides() {
			for _, v6 := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s first over %s", side(fromRight), familyName(v6)), func(t *testing.T) {
					t.Parallel()
					l := newLab(t, p, v6)
					first, second := l.pick(fromRight)
					first.start(t, l.peerOf(first))
					second.start(t, first.asPeer(netip.AddrPort{}, nil))
					serveEcho(t, second.host)
					exchange(t, first, second.inner4.Addr(), 100)
					l.wantEndpoint(t, second, first)
					wantHandshakes(t, l)
					for _, x := range l.both() {
						x.noErrors(t)
					}
				})
			}
		}
	})
}

func TestSimultaneousHandshakesLeaveWorkingTunnel(t *testing.T) {
	forEachPairing(t, func(t *testing.T, p pairing) {
		l := newLab(t, p, false)
		l.psk = presharedKey(t)
		l.start(t)
		var wg sync.WaitGroup
		for _, x := range l.both() {
			serveEcho(t, x.host)
		}
		for _, x := range l.both() {
			wg.Go(func() {
				if err := tryExchange(x, l.other(x).inner6.Addr(), 100, retryInterval, patience); err != nil {
					t.Errorf("%s: got error %v, want none", x, err)
				}
			})
		}
		wg.Wait()
		wantHandshakes(t, l)
	})
}

// TestWrongKeyIsRejectedUntilCorrected waits for at least two initiations with a wrong key. The tunnel must work after the key is
// corrected, which proves that the key was the only reason.
func TestWrongKeyIsRejectedUntilCorrected(t *testing.T) {
	for _, tc := range []struct {
		name string
		// corrupt changes the responder's configuration of the initiator.
		corrupt func(t *testing.T, p *wgtypes.PeerConfig)
	}{
		{"preshared key", func(t *testing.T, p *wgtypes.PeerConfig) { p.PresharedKey = presharedKey(t) }},
		{"public key", func(t *testing.T, p *wgtypes.PeerConfig) { p.PublicKey = presharedKey(t).PublicKey() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			forEachPairing(t, func(t *testing.T, p pairing) {
				for _, fromRight := range p.sides() {
					t.Run(side(fromRight)+" first", func(t *testing.T) {
						t.Parallel()
						rejectThenAccept(t, newLab(t, p, false), fromRight, tc.corrupt)
					})
				}
			})
		})
	}
}

func rejectThenAccept(t *testing.T, l *lab, fromRight bool, corrupt func(*testing.T, *wgtypes.PeerConfig)) {
	t.Helper()
	first, second := l.pick(fromRight)
	l.psk = presharedKey(t)
	right := first.asPeer(netip.AddrPort{}, l.psk)
	wrong := right
	corrupt(t, &wrong)
	first.start(t, l.peerOf(first))
	second.start(t, wrong)
	serveEcho(t, second.host)

	const twoInitiations = 2 * 148
	expect.EventuallyNoError(t, "two initiations", func() error {
		if err := tryExchange(first, second.inner4.Addr(), 10, retryInterval, 0); err == nil {
			t.Fatal("data arrived despite the wrong key")
		}
		if n := first.peer(t).TransmitBytes; n < twoInitiations {
			return fmt.Errorf("%s sent %d bytes", first, n)
		}
		return nil
	})
	for _, x := range l.both() {
		if at := x.handshake(t); !at.IsZero() {
			t.Errorf("%s reports a handshake at %s", x, at)
		}
	}
	expect.NoError(t, second.configure(wgtypes.Config{ReplacePeers: true, Peers: []wgtypes.PeerConfig{right}}))
	exchange(t, first, second.inner4.Addr(), 10)
	wantHandshakes(t, l)
}

// wantHandshakes waits until both sides report a handshake.
func wantHandshakes(t *testing.T, l *lab) {
	t.Helper()
	for _, x := range l.both() {
		expect.EventuallyNoError(t, x.String()+" to report a handshake", func() error {
			if x.handshake(t).IsZero() {
				return fmt.Errorf("no handshake yet")
			}
			return nil
		})
	}
}

// pick returns both sides: first is the right one if fromRight is set.
func (l *lab) pick(fromRight bool) (first, second *tunnel) {
	if fromRight {
		return l.right, l.left
	}
	return l.left, l.right
}

func side(right bool) string {
	if right {
		return "right"
	}
	return "left"
}
