// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// gsoMaxSize is the gso_max_size of an interface: trains must be smaller (gso_features_check). It is the kernel's default and the most
// that a TUN may have (TSO_LEGACY_MAX_SIZE). GRO of other devices merges up to the same size by default. If gso_max_size were less, the
// kernel would split forwarded trains into packets in software.
const gsoMaxSize = 65536

// addrGenNone is IN6_ADDR_GEN_MODE_NONE: the kernel generates no link-local address.
const addrGenNone = 1

// link is the interface as seen over netlink from one network namespace. Its sockets stay in that namespace,
// whichever thread uses them, and keep the namespace alive.
type link struct {
	handle      *netlink.Handle
	index       int
	state       Event                   // up and MTU at the last lookup
	queueLen    int                     // at the last lookup
	changes     chan netlink.LinkUpdate // of all links there; closed when messages were lost (overrun); nil without a subscription
	unsubscribe chan struct{}           // ends the subscription
	missed      chan struct{}           // has a token when a change could not be read; capacity one
}

// subscriptionBuffer is the socket's receive buffer in bytes. It holds some hundred changes of other interfaces while
// the reader is delayed.
const subscriptionBuffer = 1 << 20

// openLink finds the interface in namespace ns. nil is the namespace of the calling thread.
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

// followLink is openLink with a subscription to changes. It subscribes before the lookup, so that it misses no
// change.
func followLink(ns *netns.NsHandle, name string) (*link, error) {
	l, err := dialLink(ns)
	if err != nil {
		return nil, err
	}
	changes, unsubscribe := make(chan netlink.LinkUpdate, 16), make(chan struct{})
	l.missed = make(chan struct{}, 1)
	err = netlink.LinkSubscribeWithOptions(changes, unsubscribe, netlink.LinkSubscribeOptions{
		Namespace: ns, ReceiveBufferSize: subscriptionBuffer, ErrorCallback: l.miss,
	})
	if err != nil {
		l.close()
		return nil, fmt.Errorf("subscribing to link changes: %w", err)
	}
	l.changes, l.unsubscribe = changes, unsubscribe
	if err := l.find(name); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// miss is called after each error of the subscription, from its goroutine. It does not block.
func (l *link) miss(error) {
	select {
	case l.missed <- struct{}{}:
	default:
	}
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
	l.index, l.queueLen = found.Attrs().Index, found.Attrs().TxQLen
	l.state = eventOf(found.Attrs())
	return nil
}

// close returns after the subscription has ended.
func (l *link) close() {
	if l.changes != nil {
		close(l.unsubscribe)
		for range l.changes { // until the library closes it
		}
	}
	l.handle.Close()
}

func eventOf(a *netlink.LinkAttrs) Event {
	return Event{Up: a.Flags&net.FlagUp != 0, MTU: a.MTU}
}

// isAbout reports whether a change is of the link itself. AF_BRIDGE messages are about a bridge port.
func (l *link) isAbout(u *netlink.LinkUpdate) bool {
	return int(u.Index) == l.index && u.Family == unix.AF_UNSPEC
}

// configure sets the MTU, the queue length, gso_max_size and the address generation mode, and removes link-local addresses. It clears
// IFF_MULTICAST, as the in-kernel WireGuard does: programs that look for the flag, such as mDNS responders, leave the interface alone.
func (l *link) configure(c *Config) error {
	ref := l.ref()
	if err := l.handle.LinkSetMTU(ref, c.MTU); err != nil {
		return fmt.Errorf("setting the MTU to %d: %w", c.MTU, err)
	}
	l.acceptWholeTrains()
	l.lengthenQueues(c.Queues)
	l.disableLinkLocal()
	if !l.state.Up { // new, and not a persistent one of an administrator's choice
		_ = l.handle.LinkSetMulticastOff(ref)
	}
	l.state.MTU = c.MTU
	if c.Persist {
		return l.markPersistent()
	}
	return nil
}

// acceptWholeTrains sets gso_max_size, which may be lower on a persistent interface. Errors are ignored: a lower value costs only speed.
func (l *link) acceptWholeTrains() {
	_ = l.handle.LinkSetGSOMaxSize(l.ref(), gsoMaxSize)
	_ = l.handle.LinkSetGSOIPv4MaxSize(l.ref(), gsoMaxSize) // since Linux 6.3; older kernels ignore or reject it
}

// lengthenQueues sets the length of all queues, unless somebody has set another one. Errors are ignored: shorter ones drop more.
func (l *link) lengthenQueues(queues int) {
	if l.queueLen == kernelQueueLen {
		_ = l.handle.LinkSetTxQLen(l.ref(), QueueLen(queues))
	}
}

// disableLinkLocal stops the kernel from generating a link-local address, as the kernel's WireGuard does. Otherwise
// the kernel sends router solicitations into the tunnel. Without IPv6 the request fails, which is harmless.
func (l *link) disableLinkLocal() {
	_ = l.handle.LinkSetIP6AddrGenMode(l.ref(), addrGenNone)
	l.removeLinkLocal()
}

// removeLinkLocal removes the link-local addresses that the kernel has generated, and reports whether there were any. On a TUN device,
// whose type is ARPHRD_NONE, such an address always has IFA_F_STABLE_PRIVACY. Only the kernel can set this flag (addrconf_dev_config,
// inet6_rtm_newaddr).
func (l *link) removeLinkLocal() (found bool) {
	addresses, err := hostnet.Dump(func() ([]netlink.Addr, error) { return l.handle.AddrList(l.ref(), netlink.FAMILY_V6) })
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

func (l *link) ref() netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.index}}
}
