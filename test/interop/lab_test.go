// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/test/expect"
)

// lab is two hosts, the cable between them, and a WireGuard interface on each. The left one runs the implementation under test.
// patience limits every wait that does not depend on a WireGuard timer. It covers several lost handshakes (5 s each) on an
// overloaded emulated machine.
const patience = 3 * time.Minute

type lab struct {
	left, right *tunnel
	outer       map[*tunnel]netip.Prefix // addresses on the cable
	psk         *wgtypes.Key
	v6          bool
}

const (
	leftPort  = 51820
	rightPort = 51821
)

// newLab creates the hosts and the interfaces without starting them. v6 selects IPv6 for the outer packets.
func newLab(t *testing.T, p pairing, v6 bool) *lab {
	t.Helper()
	return newLabOver(t, p, v6, connect)
}

// newLabOver is newLab with a function that connects the hosts. Both get a device with the name cable.
func newLabOver(t *testing.T, p pairing, v6 bool, connect func(t *testing.T, a, b *host)) *lab {
	t.Helper()
	a, b := newHost(t, "left"), newHost(t, "right")
	connect(t, a, b)
	l := &lab{
		left:  newTunnel(t, p.left, a, leftPort, "10.77.0.1/24", "fd77::1/64"),
		right: newTunnel(t, p.right, b, rightPort, "10.77.0.2/24", "fd77::2/64"),
		v6:    v6,
	}
	l.outer = map[*tunnel]netip.Prefix{l.left: outerAddress(v6, 1), l.right: outerAddress(v6, 2)}
	for x, p := range l.outer {
		expect.NoError(t, x.host.addAddress(cable, p))
	}
	return l
}

// outerAddress returns the n-th address of the documentation network that stands in for the internet.
func outerAddress(v6 bool, n int) netip.Prefix {
	if v6 {
		return netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", n))
	}
	return netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", n))
}

// start starts both interfaces. Each has the other as its peer, with an endpoint.
func (l *lab) start(t *testing.T) {
	t.Helper()
	for _, x := range l.both() {
		x.start(t, l.peerOf(x))
	}
}

func (l *lab) both() []*tunnel { return []*tunnel{l.left, l.right} }

func (l *lab) other(x *tunnel) *tunnel {
	if x == l.left {
		return l.right
	}
	return l.left
}

// peerOf returns the configuration of x's peer, including the endpoint.
func (l *lab) peerOf(x *tunnel) wgtypes.PeerConfig {
	y := l.other(x)
	return y.asPeer(l.endpoint(y), l.psk)
}

func (l *lab) endpoint(x *tunnel) netip.AddrPort {
	return netip.AddrPortFrom(l.outer[x].Addr(), uint16(x.port))
}

// roam moves x to another address and port and removes the old ones.
func (l *lab) roam(x *tunnel) error {
	if err := x.host.removeAddress(cable, l.outer[x]); err != nil {
		return err
	}
	l.outer[x] = outerAddress(l.v6, 9)
	if err := x.host.addAddress(cable, l.outer[x]); err != nil {
		return err
	}
	x.port += 100
	return x.configure(wgtypes.Config{ListenPort: &x.port})
}

// wantEndpoint waits until x has y's current endpoint.
func (l *lab) wantEndpoint(t *testing.T, x, y *tunnel) {
	t.Helper()
	expect.EventuallyNoError(t, fmt.Sprintf("%s to learn the endpoint of %s", x, y), func() error {
		got := x.peer(t).Endpoint
		if got == nil {
			return fmt.Errorf("no endpoint, want %s", l.endpoint(y))
		}
		if ap := got.AddrPort(); netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()) != l.endpoint(y) {
			return fmt.Errorf("endpoint %s, want %s", got, l.endpoint(y))
		}
		return nil
	})
}

// forBothFamilies runs a scenario over IPv4 and over IPv6.
func forBothFamilies(t *testing.T, scenario func(t *testing.T, v6 bool)) {
	t.Helper()
	for _, v6 := range []bool{false, true} {
		t.Run("over "+familyName(v6), func(t *testing.T) { scenario(t, v6) })
	}
}

func familyName(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}
