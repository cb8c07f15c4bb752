// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// reached is a connection with a given remote address.
type reached struct {
	net.Conn
	at string
}

func (r reached) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(r.at)) }

// TestResolvedAPIServerBypassesTunnel covers cilium #28965, for an API server that is configured by name.
func TestResolvedAPIServerBypassesTunnel(t *testing.T) {
	at, found := "", 0
	d := &apiDialer{
		literal: []netip.Addr{netip.MustParseAddr("192.0.2.254")}, onNewAddr: func() { found++ },
		next: func(context.Context, string, string) (net.Conn, error) { return reached{at: at}, nil },
	}
	for _, at = range []string{"192.0.2.254:443", "198.51.100.1:6443", "[::ffff:198.51.100.1]:6443", "[2001:db8::1]:443", "198.51.100.1:6443"} {
		if _, err := d.dial(t.Context(), "tcp", "api.example.org:443"); err != nil {
			t.Fatal(err)
		}
	}
	want := []netip.Addr{netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("198.51.100.1")}
	if got := d.all(); !slices.Equal(got, want) || found != 3 {
		t.Errorf("got addresses %v, %d callbacks, want %v, 3", got, found, want)
	}
	ports := d.reached()
	slices.SortFunc(ports, netip.AddrPort.Compare)
	if got := fmt.Sprint(ports); got != "[192.0.2.254:443 198.51.100.1:6443 [2001:db8::1]:443]" {
		t.Errorf("reached at %s", got)
	}
}

func TestRecentAPIServerAddressesAreKept(t *testing.T) {
	at := ""
	d := &apiDialer{
		onNewAddr: func() {},
		next:      func(context.Context, string, string) (net.Conn, error) { return reached{at: at}, nil },
	}
	reach := func(i byte) netip.Addr {
		addr := netip.AddrFrom4([4]byte{203, 0, 113, i})
		at = netip.AddrPortFrom(addr, 443).String()
		if _, err := d.dial(t.Context(), "tcp", ""); err != nil {
			t.Fatal(err)
		}
		return addr
	}
	for i := range byte(100) {
		reach(0) // repeatedly, among others that come and go
		reach(i)
	}
	var want []netip.Addr
	for i := byte(100 - maxAPIAddrs + 1); i < 99; i++ {
		want = append(want, netip.AddrFrom4([4]byte{203, 0, 113, i}))
	}
	want = append(want, reach(0), reach(99))
	if got := d.all(); !slices.Equal(got, want) {
		t.Errorf("%v\nwant\n%v", got, want)
	}
}

func TestAPIServerAddressIsParsedFromHost(t *testing.T) {
	for host, want := range map[string][]netip.Addr{
		"https://192.0.2.1:6443":           {netip.MustParseAddr("192.0.2.1")},
		"https://192.0.2.1":                {netip.MustParseAddr("192.0.2.1")},
		"https://[2001:db8::1]:443/prefix": {netip.MustParseAddr("2001:db8::1")},
		"https://[::ffff:192.0.2.1]:6443":  {netip.MustParseAddr("192.0.2.1")},
		"192.0.2.1":                        {netip.MustParseAddr("192.0.2.1")},
		"192.0.2.1:6443":                   {netip.MustParseAddr("192.0.2.1")},
		"[2001:db8::1]:443":                {netip.MustParseAddr("2001:db8::1")},
		"[2001:db8::1]":                    {netip.MustParseAddr("2001:db8::1")},
		"https://api.example.org:6443":     nil,
		"api.example.org:6443":             nil,
		"":                                 nil,
	} {
		if got := apiAddrs(host); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", host, got, want)
		}
	}
}
