// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// maxGSOSize is the largest gso_max_size for a train in one IP packet (GSO_LEGACY_MAX_SIZE of Linux).
const maxGSOSize = 65536

// subscriptionBuffer, in bytes, holds some hundred changes of other interfaces while the reader is held up.
const subscriptionBuffer = 1 << 20

// addrGenNone is IN6_ADDR_GEN_MODE_NONE: no link-local address of the kernel's own making.
const addrGenNone = 1

// link is the interface as seen over netlink from one network namespace, with a subscription to its changes. Its
// sockets stay in that namespace, whichever thread uses them.
type link struct {
	handle  *netlink.Handle
	index   int
	updates chan netlink.LinkUpdate
	done    chan struct{}
	state   Event // when the subscription began
}

// openLink finds the interface in namespace ns, nil for that of the calling thread. It subscribes before it looks, so
// that no change falls between.
func openLink(ns *netns.NsHandle, name string) (l *link, err error) {
	l = &link{updates: make(chan netlink.LinkUpdate, 16), done: make(chan struct{})}
	at := netns.None()
	if ns != nil {
		at = *ns
	}
	if l.handle, err = netlink.NewHandleAt(at, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	options := netlink.LinkSubscribeOptions{Namespace: ns, ReceiveBufferSize: subscriptionBuffer}
	if err = netlink.LinkSubscribeWithOptions(l.updates, l.done, options); err != nil {
		l.handle.Close()
		return nil, fmt.Errorf("subscribing to link changes: %w", err)
	}
	found, err := l.handle.LinkByName(name)
	if err != nil {
		l.close()
		return nil, fmt.Errorf("finding interface %s: %w", name, err)
	}
	l.index = found.Attrs().Index
	l.state = stateOf(found.Attrs())
	return l, nil
}

// close ends the subscription. The subscriber's goroutine may be waiting to deliver, so what it has is thrown away.
func (l *link) close() {
	close(l.done)
	for range l.updates { // until the subscriber has left
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
	// As the kernel's WireGuard does; else router solicitations go into the tunnel. A host without IPv6 refuses.
	_ = l.handle.LinkSetIP6AddrGenMode(ref, addrGenNone)
	l.state.MTU = c.MTU
	return nil
}

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
