// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// names is a fake DNS with one name. Its lookups fail a number of times before they succeed.
type names struct {
	failures int
	err      error
	waits    []time.Duration
}

func (n *names) lookup(retries int) ResolverConfig {
	return ResolverConfig{
		Retries: retries,
		IP: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != "vpn.example" {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			if n.failures > 0 {
				n.failures--
				return nil, n.err
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")}, nil
		},
		Wait: func(_ context.Context, d time.Duration) error {
			n.waits = append(n.waits, d)
			return nil
		},
	}
}

func TestResolverAcceptsWhatWGAccepts(t *testing.T) {
	resolve := NewResolver((&names{}).lookup(0))
	for in, want := range map[string]config.Endpoint{
		"192.0.2.1:55":        {AddrPort: netip.MustParseAddrPort("192.0.2.1:55")},
		"[192.0.2.1]:55":      {AddrPort: netip.MustParseAddrPort("192.0.2.1:55")},
		"[::1]:0":             {AddrPort: netip.MustParseAddrPort("[::1]:0")},
		"::1:55":              {AddrPort: netip.MustParseAddrPort("[::1]:55")},
		"[::ffff:1.2.3.4]:55": {AddrPort: netip.MustParseAddrPort("[::ffff:1.2.3.4]:55")},
		"[fe80::1%3]:010":     {AddrPort: netip.MustParseAddrPort("[fe80::1]:10"), Scope: 3},
		"[fe80::1%lo]:55":     {AddrPort: netip.MustParseAddrPort("[fe80::1]:55"), Scope: 1},
		"vpn.example:55":      {AddrPort: netip.MustParseAddrPort("192.0.2.1:55")},
	} {
		got, err := resolve(t.Context(), in)
		if err != nil || got != want {
			t.Errorf("%q: got %v, error %v, want %v, no error", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ":", ":55", "192.0.2.1", "192.0.2.1:", "192.0.2.1:http", "192.0.2.1:65536", "192.0.2.1:-1", "[::1]", "[::1]55",
		"[::1:55", "::1]:55", "[]:55", "a b:55", "[fe80::1%eth8]:55", "other.example:55",
	} {
		if got, err := resolve(t.Context(), in); err == nil {
			t.Errorf("%q resolves to %v", in, got)
		}
	}
}

func TestResolverRetriesOnlyTemporaryErrors(t *testing.T) {
	temporary := &net.DNSError{Err: "server misbehaving", IsTemporary: true}
	final := &net.DNSError{Err: "no such host", IsNotFound: true, IsTemporary: true}
	for _, tc := range []struct {
		err               error
		failures, retries int
		waits             int
		ok                bool
	}{
		{temporary, 3, 15, 3, true},
		{temporary, 100, 2, 2, false},
		{temporary, 1, 0, 0, false},
		{temporary, 40, Forever, 40, true},
		{final, 1, 15, 0, false},
		{errors.New("other"), 1, 15, 0, false},
	} {
		n := &names{failures: tc.failures, err: tc.err}
		_, err := NewResolver(n.lookup(tc.retries))(t.Context(), "vpn.example:55")
		if (err == nil) != tc.ok || len(n.waits) != tc.waits {
			t.Errorf("%+v: waited %v, error %v", tc, n.waits, err)
		}
		if !slices.IsSorted(n.waits) || (len(n.waits) > 20 && n.waits[len(n.waits)-1] != maxDelay) {
			t.Errorf("waits %v", n.waits)
		}
	}
}

func TestLookupErrorsArePlain(t *testing.T) {
	for want, err := range map[string]*net.DNSError{
		`resolving endpoint "vpn.example:55": there is no address for the name "vpn.example"`:                                         {Err: "no such host", Name: "vpn.example", Server: "127.0.0.53:53", IsNotFound: true},
		`resolving endpoint "vpn.example:55": the name server does not answer in time`:                                                {Err: "read udp 127.0.0.1:5->127.0.0.53:53: i/o timeout", Name: "vpn.example", IsTimeout: true},
		`resolving endpoint "vpn.example:55": looking up "vpn.example" failed: the name server is not reachable or reported an error`: {Err: "server misbehaving", Name: "vpn.example", IsTemporary: true},
	} {
		n := &names{failures: 1, err: err}
		_, got := NewResolver(n.lookup(0))(t.Context(), "vpn.example:55")
		if got == nil || got.Error() != want || !errors.Is(got, err) {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

func TestLookupErrorNamesGetent(t *testing.T) {
	n := &names{failures: 1, err: &hostnet.LookupError{Getent: errors.New("no address"), DNS: &net.DNSError{Name: "vpn.example", IsTemporary: true}}}
	_, err := NewResolver(n.lookup(0))(t.Context(), "vpn.example:55")
	want := `resolving endpoint "vpn.example:55": looking up "vpn.example" failed: the name server is not reachable or reported an error (getent ahosts: no address)`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	n.failures = 1
	if _, err := NewResolver(n.lookup(1))(t.Context(), "vpn.example:55"); err != nil || len(n.waits) != 1 {
		t.Errorf("a temporary error: got %v after the waits %v, want another attempt", err, n.waits)
	}
}

func TestResolverStopsWhenContextEnds(t *testing.T) {
	n := &names{failures: 1, err: &net.DNSError{IsTimeout: true}}
	l := n.lookup(Forever)
	l.Wait = nil // use the real clock
	ctx, cancel := context.WithCancel(t.Context())
	l.OnRetry = func(string, error, time.Duration) { cancel() }
	if _, err := NewResolver(l)(ctx, "vpn.example:55"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestParseRetriesAcceptsNumberOrInfinity(t *testing.T) {
	for in, want := range map[string]int{"": 15, "0": 0, "7": 7, "infinity": Forever} {
		if got, err := ParseRetries(in); got != want || err != nil {
			t.Errorf("%q: got %d, error %v, want %d, no error", in, got, err, want)
		}
	}
	for _, in := range []string{"-1", "x", "99999999999"} {
		if _, err := ParseRetries(in); err == nil {
			t.Errorf("%q is accepted", in)
		}
	}
}
