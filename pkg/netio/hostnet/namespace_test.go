// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// enterNamespace moves the test into a new network namespace. The thread stays locked, so thread and namespace end with
// the test's goroutine.
func enterNamespace(t *testing.T) {
	t.Helper()
	namespace.Enter(t)
	mustLinkUp(t, "lo")
}

// addVeth creates a veth pair, both ends up, the first with the address 192.0.2.2/24.
func addVeth(t *testing.T, a, b string) {
	t.Helper()
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b})
	if err != nil {
		t.Skipf("needs veth links: %v", err)
	}
	mustLinkUp(t, a)
	mustLinkUp(t, b)
}

func mustLinkUp(t *testing.T, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestDoRefusesOtherNamespace opens a path that led to the namespace when it was found, and leads to another one now.
func TestDoRefusesOtherNamespace(t *testing.T) {
	here, err := CurrentNamespace()
	expect.NoError(t, err)
	ran := false
	if err := (here + 1).do("/proc/thread-self/ns/net", func() error { ran = true; return nil }); ran || err == nil {
		t.Errorf("called in another namespace: %v, error %v", ran, err)
	}
}
