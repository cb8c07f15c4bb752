// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// reached is a connection to somewhere.
type reached struct {
	net.Conn
	at string
}

func (r reached) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(r.at)) }

// TestAPIServerWithANameIsNeverBehindTheTunnel is cilium #28965 for one that is not given by its address.
func TestAPIServerWithANameIsNeverBehindTheTunnel(t *testing.T) {
	at, found := "", 0
	d := &dialled{
		known: []netip.Addr{netip.MustParseAddr("192.0.2.254")}, found: func() { found++ },
		next: func(context.Context, string, string) (net.Conn, error) { return reached{at: at}, nil },
	}
	for _, at = range []string{"192.0.2.254:443", "198.51.100.1:6443", "[::ffff:198.51.100.1]:6443", "[2001:db8::1]:443", "198.51.100.1:6443"} {
		if _, err := d.dial(t.Context(), "tcp", "api.example.org:443"); err != nil {
			t.Fatal(err)
		}
	}
	want := []netip.Addr{netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}
	if got := d.all(); !slices.Equal(got, want) || found != 2 {
		t.Errorf("%v, told of %d", got, found)
	}
	for i := range 100 {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 443).String()
		_, _ = d.dial(t.Context(), "tcp", "")
	}
	if n := len(d.all()); n > maxDialled+1 {
		t.Errorf("%d are kept", n)
	}
}
