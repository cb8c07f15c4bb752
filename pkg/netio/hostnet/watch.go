// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// burstWindow is how long changes are collected before they are reported: a daemon can replace a route within it.
const burstWindow = 100 * time.Millisecond

// WatchRoutes calls changed after each change that may affect the path or the source address of
// packets. Such a change is a route or a routing rule of either family added, replaced or removed,
// an address removed, or a link set down. Changes within 100 ms are reported once. A long call
// delays only the next. changed is called from its own goroutine until ctx ends. An overrun, by
// which messages are lost, counts as a change.
//
// WatchRoutes returns once the subscription is in place, so no later change is missed, or an error if it fails. It
// watches the network namespace of the calling thread, and costs nothing while nothing changes.
func WatchRoutes(ctx context.Context, changed func()) error {
	// Links are included because the kernel removes IPv4 routes over a downed link without a message (fib_flush).
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("subscribing to route changes: %w", err)
	}
	watchSocket(ctx, socket, isRouteChange, changed)
	return nil
}

// WatchFilters calls changed after filters of a device's clsact qdisc, or the qdisc itself, have changed: added, replaced or
// removed by any process. It calls isDevice with the index of each changed device, from another goroutine than changed.
// Otherwise it is like WatchRoutes. The kernel sends no notification about tcx programs.
func WatchFilters(ctx context.Context, isDevice func(index int) bool, changed func()) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_TC)
	if err != nil {
		return fmt.Errorf("subscribing to tc filter changes: %w", err)
	}
	watchSocket(ctx, socket, func(kind uint16, data []byte) bool {
		index, ok := filterDevice(kind, data)
		return ok && isDevice(index)
	}, changed)
	return nil
}

// WatchAddresses calls changed after an address was added or removed, or its lifetime was extended. Otherwise it is like WatchRoutes.
func WatchAddresses(ctx context.Context, changed func()) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("subscribing to address changes: %w", err)
	}
	watchSocket(ctx, socket, func(kind uint16, _ []byte) bool { return kind == unix.RTM_NEWADDR || kind == unix.RTM_DELADDR }, changed)
	return nil
}

func watchSocket(ctx context.Context, socket *nl.NetlinkSocket, relevant func(kind uint16, data []byte) bool, changed func()) {
	context.AfterFunc(ctx, socket.Close) // wakes Receive
	watch(ctx, changed, relevant, func() ([]syscall.NetlinkMessage, error) {
		messages, _, err := socket.Receive()
		return messages, err
	})
}

// watch reads and reports in separate goroutines, so that changed cannot delay the reading.
func watch(ctx context.Context, changed func(), relevant func(kind uint16, data []byte) bool, receive func() ([]syscall.NetlinkMessage, error)) {
	pending := make(chan struct{}, 1)
	go readChanges(ctx, pending, relevant, receive)
	go reportChanges(ctx, pending, changed)
}

// readChanges puts a token into pending when something changed. After an error, above all ENOBUFS (overrun), a change
// may have been missed. The pause keeps a permanent error from using a whole core.
func readChanges(ctx context.Context, pending chan<- struct{}, relevant func(kind uint16, data []byte) bool, receive func() ([]syscall.NetlinkMessage, error)) {
	for ctx.Err() == nil {
		messages, err := receive()
		if err != nil || slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool { return relevant(m.Header.Type, m.Data) }) {
			select {
			case pending <- struct{}{}:
			default:
			}
		}
		if err != nil {
			pause(ctx, burstWindow)
		}
	}
}

func reportChanges(ctx context.Context, pending <-chan struct{}, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-pending:
		}
		if !pause(ctx, burstWindow) {
			return
		}
		select {
		case <-pending: // part of the same burst
		default:
		}
		changed()
	}
}

// pause sleeps for d. It returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// isRouteChange reports whether an rtnetlink message is about a change that WatchRoutes reports. A new address is not:
// it comes with a route, and each router advertisement repeats it. Cloned routes are cached by the kernel from
// traffic.
func isRouteChange(kind uint16, data []byte) bool {
	switch kind {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return len(data) >= unix.SizeofRtMsg && // struct rtmsg: rtm_flags
			binary.NativeEndian.Uint32(data[8:])&unix.RTM_F_CLONED == 0
	case unix.RTM_DELADDR, unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return true
	case unix.RTM_NEWLINK:
		return len(data) >= unix.SizeofIfInfomsg && data[0] == unix.AF_UNSPEC && // struct ifinfomsg: ifi_flags, ifi_change
			binary.NativeEndian.Uint32(data[8:])&unix.IFF_UP == 0 &&
			binary.NativeEndian.Uint32(data[12:])&unix.IFF_UP != 0
	}
	return false
}

// filterDevice returns the index of the device that an rtnetlink message about a filter or a clsact qdisc concerns.
func filterDevice(kind uint16, data []byte) (index int, ok bool) {
	if len(data) < nl.SizeofTcMsg {
		return 0, false
	}
	m := nl.DeserializeTcMsg(data)
	switch kind {
	case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		return int(m.Ifindex), true
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC:
		return int(m.Ifindex), m.Parent == netlink.HANDLE_CLSACT
	}
	return 0, false
}
