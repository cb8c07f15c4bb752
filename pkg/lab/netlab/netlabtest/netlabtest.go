// SPDX-License-Identifier: Apache-2.0

// Package netlabtest creates network namespaces for a test and removes them when it ends.
//
// Not for other programs: it may change without notice.
package netlabtest

import (
	"crypto/rand"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// Hosts creates a lab with hosts of these names; the names of its namespaces begin with prefix. It skips the test if the process
// may not create network namespaces.
func Hosts(t testing.TB, prefix string, names ...string) (lab *netlab.Lab, hosts []*netlab.Host) {
	t.Helper()
	lab, err := netlab.New(prefix)
	requireHosts(t, err)
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range names {
		h, err := lab.Host(name)
		requireHosts(t, err)
		hosts = append(hosts, h)
	}
	return lab, hosts
}

func requireHosts(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, netlab.ErrPrivileges):
		t.Skipf("needs network namespaces: %v", err)
	case err != nil:
		t.Fatal(err)
	}
}

// Prefix returns a prefix for the namespaces of a lab, which no other test uses. When the test ends, it checks that none is left.
func Prefix(t testing.TB) string {
	t.Helper()
	prefix := "t" + strings.ToLower(rand.Text()[:10])
	t.Cleanup(func() {
		for _, dir := range []string{"/run/netns", "/run/ropewalk/netlab"} {
			if left, err := filepath.Glob(filepath.Join(dir, prefix+"-*")); err != nil || len(left) > 0 {
				t.Errorf("the test left %v, %v", left, err)
			}
		}
	})
	return prefix
}

// NeedAFXDP skips the test if no AF_XDP socket can be opened.
func NeedAFXDP(t testing.TB) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs CAP_NET_RAW and a kernel with AF_XDP: %v", err)
	}
	_ = unix.Close(fd)
}

// LinkLocal creates a host with two cables, and returns the scopes of link-local addresses there: the interface indexes, by the name of the
// device. It skips the test like Hosts, and without IPv6.
func LinkLocal(t testing.TB, prefix string) (here *netlab.Host, scopes map[string]uint32) {
	t.Helper()
	lab, hosts := Hosts(t, prefix, "here", "far")
	scopes = map[string]uint32{}
	for range 2 {
		c, err := lab.Cable(hosts[0], hosts[1], netlab.CableConfig{Queues: 1, MTU: 1500})
		if err != nil {
			t.Fatal(err)
		}
		err = hosts[0].Do(func() error {
			l, err := netlink.LinkByName(c.DeviceA)
			if err != nil {
				return err
			}
			index := l.Attrs().Index
			scopes[c.DeviceA] = uint32(index)
			prefix := &net.IPNet{IP: net.ParseIP("fe80::"), Mask: net.CIDRMask(64, 128)}
			// The kernel adds its own when it notices the carrier.
			return netlink.RouteAppend(&netlink.Route{LinkIndex: index, Dst: prefix, Priority: 1})
		})
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skipf("needs IPv6: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return hosts[0], scopes
}
