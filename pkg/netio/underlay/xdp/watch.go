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

// hop identifies a neighbour, the link-layer destination of packets. It is comparable.
type hop struct {
	device int
	addr   netip.Addr
}

// watcher subscribes to the kernel's messages about links, addresses, routes, rules, neighbours and queues, and reads Packet Too Big
// messages. It stores only that something changed; the supervisor then queries the present state.
type watcher struct {
	wake     chan struct{}
	ofDevice bool // also subscribed to neighbours, queues and Packet Too Big messages

	mu       sync.Mutex
	watched  map[hop]struct{}
	hops     map[hop]struct{}        // watched neighbours that changed
	changed  bool                    // anything other than a neighbour changed
	tooBig   map[netip.Addr]struct{} // destinations of which a path MTU may have been learned
	finished sync.WaitGroup
}

// watchErrorPause limits the CPU time of a persistent error.
const watchErrorPause = 100 * time.Millisecond

// watch starts a watcher in the calling thread's network namespace. It runs until ctx ends. Each relevant change
// notifies wake. ofDevice includes changes that matter only while a device is in use: neighbours, of which there may be many, queues
// and path MTUs.
func watch(ctx context.Context, wake chan struct{}, ofDevice bool) (*watcher, error) {
	groups := []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	}
	if ofDevice {
		groups = append(groups, unix.RTNLGRP_NEIGH)
	}
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribing to link, address, route and rule changes (netlink): %w", err)
	}
	w := &watcher{wake: wake, ofDevice: ofDevice, watched: map[hop]struct{}{}, hops: map[hop]struct{}{}, tooBig: map[netip.Addr]struct{}{}}
	w.listen(ctx, socket, w.record)
	if ofDevice {
		w.watchTooBig(ctx)
		if queues, err := subscribeQueues(); err == nil {
			w.listen(ctx, queues, w.recordQueues)
		} // without it, changed queues are noticed at the next other change
	}
	return w, nil
}

// listen records a socket's messages until ctx ends. finished is done when the socket is closed.
func (w *watcher) listen(ctx context.Context, socket *nl.NetlinkSocket, note func([]syscall.NetlinkMessage, error) bool) {
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		socket.Close() // this wakes Receive
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
			notify(w.wake)
		}
		if err != nil {
			pause(ctx, watchErrorPause)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// record records messages, and reports whether any of them matters. After an error, ENOBUFS above all, messages may be
// missing.
func (w *watcher) record(messages []syscall.NetlinkMessage, err error) (matters bool) {
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

// isChange reports whether an rtnetlink message is about a change other than of a neighbour. It ignores cloned routes,
// which the kernel learned from traffic, and link messages of other address families, which come from bridges.
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

// takeChanges returns the changes since the last call.
func (w *watcher) takeChanges() (changed bool, hops map[hop]struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed, hops = w.changed, w.hops
	w.changed = false
	w.hops = map[hop]struct{}{}
	return changed, hops
}

// addWatched adds a neighbour to the watched ones.
func (w *watcher) addWatched(h hop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched[h] = struct{}{}
}

// setWatched replaces the set of watched neighbours.
func (w *watcher) setWatched(all map[hop]struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched = all
}

// neighbour is the kernel's entry of a hop.
type neighbour struct {
	state uint16 // NUD_*
	addr  mac
}

// usableStates are the states in which the kernel sends without resolving first (NUD_VALID of include/net/neighbour.h).
const usableStates = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE | netlink.NUD_PROBE |
	netlink.NUD_STALE | netlink.NUD_DELAY

func (n *neighbour) known() bool { return n.state&usableStates != 0 && n.addr != mac{} }

// Layout of struct ndmsg (linux/neighbour.h).
const (
	ndmsgLen   = 12
	ndmIndex   = 4 // offset in struct ndmsg
	ndmState   = 8
	attrHeader = unix.SizeofNlAttr
)

// parseNeighbour parses struct ndmsg and its attributes. ok is false if the neighbour is not an IP address.
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
