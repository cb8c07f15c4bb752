// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// remote and remote6 are behind the device of slowDevice.
var (
	remote  = netip.MustParseAddrPort("198.51.100.2:51820")
	remote6 = netip.MustParseAddrPort("[2001:db8:51::2]:51820")
)

// enterNamespace moves the test's goroutine into a new network namespace with a loopback device. The thread ends with
// the goroutine, and the namespace with its last socket. Without root the test uses the host's loopback.
func enterNamespace(t testing.TB) (private bool) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return false
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	return true
}

// requireNamespace is enterNamespace for tests that change the namespace.
func requireNamespace(t *testing.T) {
	t.Helper()
	if !enterNamespace(t) {
		t.Skip("needs root (CAP_SYS_ADMIN) for a network namespace")
	}
}

// slowDevice is requireNamespace, and adds a device through which next to nothing leaves during a test. remote and remote6 are behind it, and
// drop what arrives. The function, or the test's end, removes the rate limit: a packet that waits holds its socket, so the namespace would
// live for an hour.
//
// The loopback device will not do: after a test that was killed, answers to its packets would fill the ICMP socket of their CPU, which all
// namespaces share (icmp_init in net/ipv4/icmp.c), and no host on the machine would answer pings there.
func slowDevice(t *testing.T) (remove func()) {
	t.Helper()
	requireNamespace(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "slow"
	expect.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "drain"}))
	drain, err := netlink.LinkByName("drain")
	expect.NoError(t, err)
	slow, err := netlink.LinkByName("slow")
	expect.NoError(t, err)
	for _, a := range []string{"198.51.100.1/24", "2001:db8:51::1/64"} {
		addr, err := netlink.ParseAddr(a)
		expect.NoError(t, err)
		addr.Flags = unix.IFA_F_NODAD
		expect.NoError(t, netlink.AddrAdd(slow, addr))
	}
	for _, link := range []netlink.Link{slow, drain} {
		expect.NoError(t, netlink.LinkSetUp(link))
	}
	for _, ip := range []netip.Addr{remote.Addr(), remote6.Addr()} {
		expect.NoError(t, netlink.NeighAdd(&netlink.Neigh{
			LinkIndex: slow.Attrs().Index, State: unix.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		}))
	}
	q := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: slow.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       1000, Buffer: netlink.Xmittime(1000, 4000), Limit: 1 << 30, // all in bytes
	}
	if err := netlink.QdiscAdd(q); err != nil {
		t.Skipf("needs the tbf qdisc: %v", err)
	}
	remove = sync.OnceFunc(func() { expect.NoError(t, netlink.QdiscDel(q)) })
	t.Cleanup(remove)
	return remove
}

// behindSlowDevice returns an endpoint behind slowDevice, without a source address.
func behindSlowDevice(ipv6 bool) underlay.Endpoint {
	if ipv6 {
		return underlay.Endpoint{Dst: remote6}
	}
	return underlay.Endpoint{Dst: remote}
}
