// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// testHost is a network namespace with an uplink (u0, 192.0.2.2/24, MTU 1400, default route) and a Runner in it.
type testHost struct {
	*Runner
	t      *testing.T
	dir    string // temporary
	stdout bytes.Buffer
	stderr bytes.Buffer
}

// newHost skips the test if it cannot create a host. The test's goroutine stays in the namespace, which ends with its thread.
func newHost(t *testing.T) *testHost {
	t.Helper()
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs root and TUN devices: %v", err)
	}
	f.Close()
	namespace.Enter(t)
	h := &testHost{t: t, dir: t.TempDir()}
	h.Runner = &Runner{
		Stdout: &h.stdout, Stderr: &h.stderr,
		Tools: FindTools(lookPath), Root: os.DirFS("/"),
		Sockets: uapitest.NewDir(t), RunDir: filepath.Join(h.dir, "run"),
		Resolve: conffile.NewResolver(conffile.ResolverConfig{}),
	}
	h.Daemon = fakeCommand(fakeWorks, h.Sockets)
	h.Tools.Resolvconf = h.fakeResolvconf()
	h.uplink()
	return h
}

func (h *testHost) uplink() {
	h.t.Helper()
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "u0"}, PeerName: "u1"})
	if err != nil {
		h.t.Skipf("needs veth links: %v", err)
	}
	for _, name := range []string{"lo", "u0", "u1"} {
		// Without link-local addresses, whose tentative state would make snapshots differ.
		expect.NoError(h.t, hostnet.DisableLinkLocal(name))
		expect.NoError(h.t, hostnet.SetLinkUp(name, 1400))
	}
	expect.NoError(h.t, hostnet.AddAddress("u0", netip.MustParsePrefix("192.0.2.2/24")))
	expect.NoError(h.t, netlink.RouteAdd(&netlink.Route{
		Dst: defaultNet(), Gw: netip.MustParseAddr("192.0.2.1").AsSlice(),
	}))
}

// fakeResolvconf keeps entries as files of their name in dir/dns.
func (h *testHost) fakeResolvconf() string {
	db := filepath.Join(h.dir, "dns")
	expect.NoError(h.t, os.Mkdir(db, 0o755))
	path := filepath.Join(h.dir, "resolvconf")
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in\n-a) cat > '%s'/$2;;\n-d) rm -f '%s'/$2;;\n-l) cat '%s'/$2;;\nesac\n", db, db, db)
	expect.NoError(h.t, os.WriteFile(path, []byte(script), 0o755))
	return path
}

// open writes the file of an interface and opens it. Any name is free in the test's namespace.
func (h *testHost) open(name, text string) Interface {
	h.t.Helper()
	path := filepath.Join(h.dir, name+".conf")
	text = strings.NewReplacer("$KEY", testPrivateKey, "$A", testPeerA, "$B", testPeerB, "$DIR", h.dir).Replace(text)
	expect.NoError(h.t, os.WriteFile(path, []byte(text), 0o600))
	i, err := Open(h.dir, name)
	expect.NoError(h.t, err)
	return i
}

// up brings an interface up, and takes it down when the test ends if it is still up.
func (h *testHost) up(i Interface) {
	h.t.Helper()
	h.t.Cleanup(func() {
		err := h.Down(context.Background(), i)
		if err != nil && !errors.Is(err, ErrNotWireGuard) {
			h.t.Error(err)
		}
	})
	expect.NoError(h.t, h.Up(h.t.Context(), i))
}

// snapshot returns all host state that an interface may change, one line each.
func (h *testHost) snapshot() []string {
	h.t.Helper()
	lines := slices.Concat(h.links(), h.routes(), h.rules(), h.firewall(), h.files())
	valid, err := hostnet.SrcValidMark()
	expect.NoError(h.t, err)
	return append(lines, fmt.Sprintf("src_valid_mark %v", valid))
}

// dumped repeats a netlink dump that was interrupted by a change, such as the end of duplicate address detection.
func dumped[T any](list func() ([]T, error)) (all []T, err error) {
	for range 20 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func (h *testHost) links() []string {
	links, err := dumped(netlink.LinkList)
	expect.NoError(h.t, err)
	var lines []string
	for _, l := range links {
		a := l.Attrs()
		lines = append(lines, fmt.Sprintf("link %s mtu %d up %v", a.Name, a.MTU, a.Flags&unix.IFF_UP != 0))
		addrs, err := dumped(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		expect.NoError(h.t, err)
		for _, addr := range addrs {
			if !addr.IP.IsLinkLocalUnicast() {
				lines = append(lines, fmt.Sprintf("address %s dev %s scope %d", addr.IPNet, a.Name, addr.Scope))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// routes omits the local table and link-local routes: the kernel adds them for addresses, some with a delay.
func (h *testHost) routes() []string {
	routes, err := dumped(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	})
	expect.NoError(h.t, err)
	var lines []string
	for _, r := range routes {
		dst := "default"
		if r.Dst != nil {
			dst = r.Dst.String()
		}
		if r.Table == unix.RT_TABLE_LOCAL || strings.HasPrefix(dst, "fe80:") {
			continue
		}
		l, err := netlink.LinkByIndex(r.LinkIndex)
		expect.NoError(h.t, err)
		lines = append(lines, fmt.Sprintf("route %s dev %s table %d scope %d proto %d metric %d type %d",
			dst, l.Attrs().Name, r.Table, r.Scope, r.Protocol, r.Priority, r.Type))
	}
	slices.Sort(lines)
	return lines
}

func (h *testHost) rules() []string {
	var lines []string
	for _, family := range hostnet.Families() {
		rules, err := hostnet.Rules(family)
		expect.NoError(h.t, err)
		for _, r := range rules {
			lines = append(lines, fmt.Sprintf("rule %+v", r))
		}
	}
	return lines
}

func (h *testHost) firewall() []string {
	if h.Tools.Nft == "" {
		return nil
	}
	text, err := pipe(context.Background(), "", h.Tools.Nft, "list", "ruleset")
	expect.NoError(h.t, err)
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, "fe80:") {
			lines = append(lines, "nft "+line)
		}
	}
	slices.Sort(lines) // tables are listed in order of creation
	return lines
}

// files lists saved states, locks, sockets and DNS entries, but no logs: that of a failed Up stays. It omits the default directory of sockets, which other tests use too.
func (h *testHost) files() []string {
	dirs := []string{h.RunDir, filepath.Join(h.dir, "dns")}
	if h.Sockets != uapi.DefaultDir {
		dirs = append(dirs, string(h.Sockets))
	}
	var lines []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			h.t.Fatal(err)
		}
		for _, e := range entries {
			if filepath.Ext(e.Name()) != ".log" {
				lines = append(lines, "file "+e.Name())
			}
		}
	}
	return lines
}
