// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// hop is a neighbour: whom packets are handed to. It is comparable.
type hop struct {
	device int
	addr   netip.Addr
}

// watcher listens to what the kernel says about links, addresses, routes, rules, neighbours and queues. Nothing of it is kept but that
// something changed: what is true now is for the keeper to ask.
type watcher struct {
	wake     chan struct{}
	concerns subscriptions

	mu       sync.Mutex
	watched  map[hop]struct{}
	hops     map[hop]struct{} // of the watched ones, those that changed
	changed  bool             // anything but neighbours
	finished sync.WaitGroup
}

// subscriptions are what a watcher listens to beside what concerns everybody.
type subscriptions struct {
	neighbours bool // of which there may be many: they matter only to those who write frames
	queues     bool
}

// watchErrorPause keeps a lasting error from taking a core.
const watchErrorPause = 100 * time.Millisecond

// watch begins to listen in the calling thread's network namespace, until ctx ends. Each change that matters rings wake.
func watch(ctx context.Context, wake chan struct{}, c subscriptions) (*watcher, error) {
	groups := []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	}
	if c.neighbours {
		groups = append(groups, unix.RTNLGRP_NEIGH)
	}
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribing to changes of the network: %w", err)
	}
	w := &watcher{wake: wake, concerns: c, watched: map[hop]struct{}{}, hops: map[hop]struct{}{}}
	w.listen(ctx, socket, w.note)
	if c.queues {
		if queues, err := subscribeQueues(); err == nil {
			w.listen(ctx, queues, w.noteQueues)
		} // or queues are noticed when something else changes
	}
	return w, nil
}

// listen notes what a socket says, until ctx ends. It has finished when the socket is closed.
func (w *watcher) listen(ctx context.Context, socket *nl.NetlinkSocket, note func([]syscall.NetlinkMessage, error) bool) {
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		socket.Close() // which wakes Receive
		close(closed)
	})
	w.finished.Go(func() {
		w.receiveLoop(ctx, socket, note)
		<-closed
	})
}

func (w *watcher) receiveLoop(ctx context.Context, socket *nl.NetlinkSocket, note func([]syscall.NetlinkMessage, error) bool) {
	for ctx.Err() == nil {
		messages, _, err := socket.Receive()
		if note(messages, err) {
			ring(w.wake)
		}
		if err != nil {
			pause(ctx, watchErrorPause)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// note reports whether any of the messages matter. An error, ENOBUFS above all, says that some may have been missed.
func (w *watcher) note(messages []syscall.NetlinkMessage, err error) (matters bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.changed = true
		return true
	}
	for i := range messages {
		switch m := &messages[i]; {
		case isChange(m.Header.Type, m.Data):
			w.changed, matters = true, true
		case m.Header.Type == unix.RTM_NEWNEIGH || m.Header.Type == unix.RTM_DELNEIGH:
			h, _, ok := parseNeighbour(m.Data)
			if _, watched := w.watched[h]; ok && watched {
				w.hops[h], matters = struct{}{}, true
			}
		}
	}
	return matters
}

// isChange says whether an rtnetlink message is about a change of anything but neighbours. Cloned routes are what the kernel
// learned from traffic; a link message of another family is a bridge's.
func isChange(kind uint16, data []byte) bool {
	switch kind {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return len(data) >= unix.SizeofRtMsg && // struct rtmsg: rtm_flags
			binary.NativeEndian.Uint32(data[8:])&unix.RTM_F_CLONED == 0
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return len(data) >= unix.SizeofIfInfomsg && data[0] == unix.AF_UNSPEC
	case unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return true
	}
	return false
}

// takeChanges returns what has changed since the last call.
func (w *watcher) takeChanges() (changed bool, hops map[hop]struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed, hops = w.changed, w.hops
	w.changed = false
	w.hops = map[hop]struct{}{}
	return changed, hops
}

// watchNeighbour says which neighbours matter from now on, beside those that do already.
func (w *watcher) watchNeighbour(h hop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched[h] = struct{}{}
}

// watchesNeighbour says which neighbours matter, and no others.
func (w *watcher) watchesNeighbour(all map[hop]struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched = all
}

// neighbour is what the kernel knows of a hop.
type neighbour struct {
	state uint16 // NUD_*
	addr  mac
}

// usable is what the kernel itself sends to without asking first (NUD_VALID of include/net/neighbour.h).
const usable = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_PROBE |
	netlink.NUD_STALE | netlink.NUD_DELAY

func (n *neighbour) known() bool { return n.state&usable != 0 && n.addr != mac{} }

// The part of linux/neighbour.h that is read.
const (
	ndmsgLen   = 12
	ndmIndex   = 4 // offset in struct ndmsg
	ndmState   = 8
	attrHeader = unix.SizeofNlAttr
)

// parseNeighbour reads struct ndmsg and its attributes. ok is false for what is not of IP.
func parseNeighbour(data []byte) (h hop, n neighbour, ok bool) {
	if len(data) < ndmsgLen {
		return hop{}, neighbour{}, false
	}
	h.device = int(int32(binary.NativeEndian.Uint32(data[ndmIndex:])))
	n.state = binary.NativeEndian.Uint16(data[ndmState:])
	for rest := data[ndmsgLen:]; len(rest) >= attrHeader; {
		length := int(binary.NativeEndian.Uint16(rest))
		if length < attrHeader || length > len(rest) {
			break
		}
		value := rest[attrHeader:length]
		switch binary.NativeEndian.Uint16(rest[2:]) {
		case netlink.NDA_DST:
			h.addr, ok = netip.AddrFromSlice(value)
		case netlink.NDA_LLADDR:
			if len(value) == len(n.addr) {
				n.addr = mac(value)
			}
		}
		rest = rest[min(len(rest), (length+3)&^3):]
	}
	return h, n, ok && (data[0] == unix.AF_INET || data[0] == unix.AF_INET6)
}
