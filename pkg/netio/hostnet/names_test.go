// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

func addrsOf(texts ...string) (addrs []netip.Addr) {
	for _, text := range texts {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}

func TestAddrsKeepZones(t *testing.T) {
	got := Addrs([]net.IPAddr{{IP: net.ParseIP("192.0.2.1")}, {IP: net.ParseIP("fe80::1"), Zone: "eth7"}, {IP: net.IP{1}}})
	if want := addrsOf("192.0.2.1", "fe80::1%eth7"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAhostsOutputIsReadStrictly(t *testing.T) {
	for text, want := range map[string][]netip.Addr{
		"2001:db8::2     STREAM vpn.example.org\n2001:db8::2     DGRAM  \n2001:db8::2     RAW    \n192.0.2.2       STREAM \n": addrsOf("2001:db8::2", "192.0.2.2"),
		"fe80::2%eth0    STREAM nas.local\n":     addrsOf("fe80::2%eth0"),
		"::ffff:192.0.2.2 STREAM v4.example\n":   addrsOf("192.0.2.2"),
		"192.0.2.2 STREAM a\nwarning: odd\n":     nil,
		"\n":                                     nil,
		"":                                       nil,
		"192.0.2.2.3     STREAM vpn.example.org": nil,
	} {
		got, err := parseAhosts([]byte(text))
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: got %v, error %v, want %v", text, got, err, want)
		}
	}
}

// fakeGetent puts a getent with this script in front of the others.
func fakeGetent(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "getent"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestLookUpHostPrefersGetent(t *testing.T) {
	fakeGetent(t, `[ "$*" = "ahosts localhost" ] && printf '192.0.2.7 STREAM\nfd00::7 STREAM\n'`)
	got, err := LookUpHost(t.Context(), "localhost")
	if want := addrsOf("192.0.2.7", "fd00::7"); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, error %v, want %v", got, err, want)
	}
}

func TestLookUpHostFallsBackToGoResolver(t *testing.T) {
	for _, script := range []string{"exit 2", "exit 1", "echo nonsense", "kill -9 $$"} {
		fakeGetent(t, script)
		if got, err := LookUpHost(t.Context(), "localhost"); err != nil || len(got) == 0 || !got[0].IsLoopback() {
			t.Errorf("getent does `%s`: got %v, error %v", script, got, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if got, err := LookUpHost(t.Context(), "localhost"); err != nil || len(got) == 0 || !got[0].IsLoopback() {
		t.Errorf("without getent: got %v, error %v", got, err)
	}
}

func TestLookupErrorNamesBothResolvers(t *testing.T) {
	fakeGetent(t, "exit 2")
	_, err := LookUpHost(t.Context(), "no host")
	both, ok := errors.AsType[*LookupError](err)
	dns, isDNS := errors.AsType[*net.DNSError](err)
	if !ok || !isDNS || !dns.IsNotFound || both.Getent.Error() != "no address" {
		t.Errorf("got %v", err)
	}
}

func TestNameIsNoOptionOfGetent(t *testing.T) {
	fakeGetent(t, "echo 192.0.2.7 STREAM")
	for _, host := range []string{"-s", "--help", ""} {
		if got, err := Getent(t.Context(), host); err == nil {
			t.Errorf("%q: got %v, want an error", host, got)
		}
	}
}

func TestHangingGetentEndsWithContext(t *testing.T) {
	fakeGetent(t, "exec sleep 1000")
	cause := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := Getent(ctx, "localhost"); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

// TestHangingGetentLeavesTimeForGoResolver has a caller with less time than the C library may take.
func TestHangingGetentLeavesTimeForGoResolver(t *testing.T) {
	fakeGetent(t, "exec sleep 1000")
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
	defer cancel()
	if got, err := LookUpHost(ctx, "localhost"); err != nil || len(got) == 0 || !got[0].IsLoopback() {
		t.Errorf("got %v, error %v, want addresses of Go's resolver", got, err)
	}
}

// TestGetentObeysGaiConf gives a name an IPv4 and an IPv6 address, and prefers either in gai.conf(5).
func TestGetentObeysGaiConf(t *testing.T) {
	if _, err := exec.LookPath("getent"); err != nil {
		t.Skip("needs getent")
	}
	if musl, _ := filepath.Glob("/lib/ld-musl-*"); len(musl) > 0 {
		t.Skip("musl has no gai.conf")
	}
	namespace.EnterWithMounts(t)
	mustLinkUp(t, "lo")
	addVeth(t, "near", "far")
	expect.NoError(t, AddAddress("near", netip.MustParsePrefix("192.0.2.1/24")))
	expect.NoError(t, AddAddress("near", netip.MustParsePrefix("2001:db8::1/64")))
	expect.NoError(t, unix.Mount("tmpfs", "/etc", "tmpfs", 0, ""))
	expect.NoError(t, os.WriteFile("/etc/nsswitch.conf", []byte("hosts: files\n"), 0o644))
	expect.NoError(t, os.WriteFile("/etc/host.conf", []byte("multi on\n"), 0o644))
	expect.NoError(t, os.WriteFile("/etc/hosts", []byte("2001:db8::2 vpn.example.org\n192.0.2.2 vpn.example.org\n"), 0o644))
	for conf, want := range map[string]string{"": "2001:db8::2", "precedence ::ffff:0:0/96 100\n": "192.0.2.2"} {
		expect.NoError(t, os.WriteFile("/etc/gai.conf", []byte(conf), 0o644))
		expect.EventuallyNoError(t, want+" is first", func() error { // an IPv6 address is usable after duplicate address detection
			got, err := LookUpHost(t.Context(), "vpn.example.org")
			if err == nil && (len(got) != 2 || got[0] != netip.MustParseAddr(want)) {
				err = fmt.Errorf("gai.conf %q: got %v", conf, got)
			}
			return err
		})
	}
}
