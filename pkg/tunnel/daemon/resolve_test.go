// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

func TestTTLIsTheLeastOfTheAnswers(t *testing.T) {
	name := dnsmessage.MustNewName("vpn.example.")
	var l minTTL
	for _, ttls := range [][]uint32{{300, 120}, {900}} {
		m := dnsmessage.Message{Header: dnsmessage.Header{Response: true}, Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
		for _, ttl := range ttls {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttl},
				Body:   &dnsmessage.AResource{A: netip.MustParseAddr("192.0.2.1").As4()},
			})
		}
		b, err := m.Pack()
		expect.NoError(t, err)
		l.note(b)
		l.note(b[:len(b)-3]) // truncated
		l.note(nil)
	}
	if got := l.seconds.Load(); got != 120 {
		t.Errorf("got %d s, want 120 s", got)
	}
}

func TestResolveAcceptsAddresses(t *testing.T) {
	r, err := resolve(t.Context(), "localhost:51820", 0)
	expect.NoError(t, err)
	for _, e := range r.Endpoints {
		if !e.AddrPort.Addr().IsLoopback() || e.AddrPort.Port() != 51820 {
			t.Errorf("got %v", e)
		}
	}
	if len(r.Endpoints) == 0 || r.TTL != 0 {
		t.Errorf("got %+v", r)
	}
	if _, err := resolve(t.Context(), "localhost", 0); err == nil {
		t.Error("a name without a port: got no error")
	}
}

func TestResolvedEndpointHasItsScope(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	expect.NoError(t, err)
	r, err := resolve(t.Context(), "[fe80::1%lo]:51820", 0)
	expect.NoError(t, err)
	want := config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::1]:51820"), Scope: uint32(lo.Index)}
	if len(r.Endpoints) != 1 || r.Endpoints[0] != want {
		t.Errorf("got %v, want %v", r.Endpoints, want)
	}
	if _, err := resolve(t.Context(), "[fe80::1%nosuch]:51820", 0); err == nil {
		t.Error("a zone without an interface: got no error")
	}
}

// fakeGetent puts a getent with this script in front of the others.
func fakeGetent(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "getent"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestGetentDecidesUnlessQueriesAreMarked: a marked query must not take a default route through the tunnel, and getent's would.
func TestGetentDecidesUnlessQueriesAreMarked(t *testing.T) {
	fakeGetent(t, "echo 192.0.2.7 STREAM; echo 192.0.2.8 STREAM")
	for _, tc := range []struct {
		name string
		mark uint32
		want string
	}{
		{"localhost:5", 0, "192.0.2.7:5"},
		{"localhost:5", 7, "127.0.0.1:5"},
		{"nas.invalid-:5", 7, "192.0.2.7:5"}, // known to getent alone
	} {
		r, err := resolve(t.Context(), tc.name, tc.mark)
		if err != nil || len(r.Endpoints) == 0 || r.Endpoints[0].AddrPort.String() != tc.want {
			t.Errorf("%s with mark %d: got %v, error %v, want %s", tc.name, tc.mark, r.Endpoints, err, tc.want)
		}
	}
	fakeGetent(t, "exit 2")
	if _, err := resolve(t.Context(), "nas.invalid-:5", 0); err == nil || !strings.Contains(err.Error(), "getent ahosts: no address; Go's resolver: ") {
		t.Errorf("got error %v, want both resolvers' errors", err)
	}
}

// TestUnansweredMarkedQueryIsNotSentUnmarked executes itself in a network namespace without routes: queries come from any thread.
func TestUnansweredMarkedQueryIsNotSentUnmarked(t *testing.T) {
	const inside = "ROPEWALK_TEST_NO_ROUTES"
	if os.Getenv(inside) == "" {
		namespace.Enter(t)
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	fakeGetent(t, "echo 192.0.2.7 STREAM")
	r, err := resolve(t.Context(), "vpn.example:5", 7)
	if dns, ok := errors.AsType[*net.DNSError](err); !ok || dns.IsNotFound {
		t.Errorf("got %v, error %v, want the error of a query without an answer", r.Endpoints, err)
	}
}
