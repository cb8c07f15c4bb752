// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"testing"

	"github.com/vishvananda/netlink"

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
