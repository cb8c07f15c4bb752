// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// maxGSOSize is the largest gso_max_size for a train in one IP packet (GSO_LEGACY_MAX_SIZE of Linux).
const maxGSOSize = 65536

// addrGenNone is IN6_ADDR_GEN_MODE_NONE: no link-local address of the kernel's own making.
const addrGenNone = 1

// ipv6MinMTU is the smallest MTU, in bytes, with which an interface has IPv6 (RFC 8200, section 5). Linux forgets all
// that was set of it below, and makes it anew above.
const ipv6MinMTU = 1280

// link is the interface as seen over netlink from one network namespace. Its sockets stay in that namespace, whichever
// thread uses them, and keep it alive.
type link struct {
	handle *netlink.Handle
	index  int
	state  Event     // when it was looked up
	feed   *linkFeed // nil without a subscription
}

// openLink finds the interface in namespace ns, nil for that of the calling thread.
func openLink(ns *netns.NsHandle, name string) (*link, error) {
	l, err := dialLink(ns)
	if err != nil {
		return nil, err
	}
	if err := l.find(name); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// followLink is openLink with a subscription to changes. It subscribes before it looks, so that no change falls between.
func followLink(ns *netns.NsHandle, name string) (*link, error) {
	l, err := dialLink(ns)
	if err != nil {
		return nil, err
	}
	l.feed, err = openFeed(ns)
	if err == nil {
		err = l.find(name)
	}
	if err == nil {
		err = l.feed.begin(l.index)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func dialLink(ns *netns.NsHandle) (*link, error) {
	at := netns.None()
	if ns != nil {
		at = *ns
	}
	handle, err := netlink.NewHandleAt(at, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return &link{handle: handle}, nil
}

func (l *link) find(name string) error {
	found, err := l.handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding interface %s: %w", name, err)
	}
	l.index = found.Attrs().Index
	l.state = stateOf(found.Attrs())
	return nil
}

func (l *link) close() {
	if l.feed != nil {
		l.feed.close()
	}
	l.handle.Close()
}

func stateOf(a *netlink.LinkAttrs) Event {
	return Event{Up: a.Flags&net.FlagUp != 0, MTU: a.MTU}
}

// configure sets what Config wants of the interface.
func (l *link) configure(c *Config) error {
	ref := l.ref()
	if err := l.handle.LinkSetMTU(ref, c.MTU); err != nil {
		return fmt.Errorf("setting the MTU to %d: %w", c.MTU, err)
	}
	if err := l.handle.LinkSetTxQLen(ref, c.QueueLen); err != nil {
		return fmt.Errorf("setting the queue length to %d: %w", c.QueueLen, err)
	}
	l.silence()
	l.state.MTU = c.MTU
	return nil
}

// silence lets the kernel make no link-local address, as its own WireGuard does; else router solicitations go into the
// tunnel. A host without IPv6 refuses, and has nothing to be silenced.
func (l *link) silence() {
	_ = l.handle.LinkSetIP6AddrGenMode(l.ref(), addrGenNone)
	l.removeKernelAddresses()
}

// removeKernelAddresses removes what the kernel was quicker to make, and reports whether there was any. On a TUN, whose
// type is ARPHRD_NONE, its link-local address is always a stable-privacy one, a flag that nobody else can set
// (addrconf_dev_config, inet6_rtm_newaddr).
func (l *link) removeKernelAddresses() (found bool) {
	addresses, err := listAddresses(l.handle, l.ref())
	if err != nil {
		return false
	}
	for _, a := range addresses {
		if a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_STABLE_PRIVACY != 0 {
			_ = l.handle.AddrDel(l.ref(), &a)
			found = true
		}
	}
	return found
}

// listAddresses lists the IPv6 addresses of a link, and again when they changed meanwhile.
func listAddresses(h *netlink.Handle, link netlink.Link) (addresses []netlink.Addr, err error) {
	for range dumpAttempts {
		addresses, err = h.AddrList(link, netlink.FAMILY_V6)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return addresses, err
}

// dumpAttempts is how often a dump that was interrupted is made.
const dumpAttempts = 20

// setTrainLimit sets gso_max_size, which is an exclusive bound for what is forwarded (gso_features_check). The number of
// segments stays unlimited: a forwarded train with too many would be split in software, packet by packet.
func (l *link) setTrainLimit(bytes int) error {
	size := min(bytes+1, maxGSOSize)
	if err := l.handle.LinkSetGSOMaxSize(l.ref(), size); err != nil {
		return fmt.Errorf("setting gso_max_size to %d: %w", size, err)
	}
	// From Linux 6.3 IPv4 has its own, which follows the other one below 64 KiB; older kernels ignore or refuse it.
	_ = l.handle.LinkSetGSOIPv4MaxSize(l.ref(), size)
	return nil
}

func (l *link) ref() netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.index}}
}
