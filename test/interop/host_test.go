// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// host is an unnamed network namespace. The kernel removes it with its last socket, process and handle.
type host struct {
	name string
	ns   netns.NsHandle
	nl   *netlink.Handle
}

// requireTUN skips the test without root or /dev/net/tun.
func requireTUN(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces and TUN devices")
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs /dev/net/tun: %v", err)
	}
	_ = f.Close()
}

func newHost(t *testing.T, name string) *host {
	t.Helper()
	h := &host{name: name, ns: netns.None()}
	err := onThread(func() (err error) {
		h.ns, err = netns.New()
		return err
	})
	if errors.Is(err, unix.EPERM) {
		t.Skipf("needs CAP_SYS_ADMIN for network namespaces: %v", err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { _ = h.ns.Close() })
	h.nl, err = netlink.NewHandleAt(h.ns, unix.NETLINK_ROUTE)
	expect.NoError(t, err)
	t.Cleanup(h.nl.Close)
	lo, err := h.nl.LinkByName("lo")
	expect.NoError(t, err)
	expect.NoError(t, h.nl.LinkSetUp(lo))
	return h
}

// do runs f in the host's namespace. Sockets and processes that f creates belong to it.
func (h *host) do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(h.ns); err != nil {
			return fmt.Errorf("entering host %s: %w", h.name, err)
		}
		return f()
	})
}

// onThread runs f on a locked thread. f may change the thread's namespace, which is restored afterwards.
func onThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			result <- fmt.Errorf("reading the thread's namespace: %w", err)
			return // still locked: the runtime ends the thread
		}
		defer home.Close()
		err = f()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// cable is the name of the veth device in each host.
const cable = "cable"

// connect creates a veth pair between two hosts.
func connect(t *testing.T, a, b *host) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = cable
	expect.NoError(t, a.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: cable, PeerNamespace: netlink.NsFd(int(b.ns))}))
	for _, h := range []*host{a, b} {
		expect.NoError(t, h.setUp(cable))
	}
}

func (h *host) setUp(dev string) error {
	l, err := h.nl.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("looking up %s: %w", dev, err)
	}
	return h.nl.LinkSetUp(l)
}

// addAddress adds an address without duplicate address detection, so that it is usable at once.
func (h *host) addAddress(dev string, p netip.Prefix) error {
	l, err := h.nl.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("looking up %s: %w", dev, err)
	}
	if err := h.nl.AddrAdd(l, address(p)); err != nil {
		return fmt.Errorf("adding %s to %s: %w", p, dev, err)
	}
	return nil
}

func (h *host) removeAddress(dev string, p netip.Prefix) error {
	l, err := h.nl.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("looking up %s: %w", dev, err)
	}
	if err := h.nl.AddrDel(l, address(p)); err != nil {
		return fmt.Errorf("removing %s from %s: %w", p, dev, err)
	}
	return nil
}

func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
