// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// burstWindow is how long changes are collected before they are reported: a daemon can replace a route within it.
const burstWindow = 100 * time.Millisecond

// WatchRoutes calls changed after each change that may affect the path or the source address of packets: a route of
// either family added, replaced or removed, an address removed, or a link set down. Changes within 100 ms are
// reported once. A long call delays only the next. changed is called from its own goroutine until ctx ends. An
// overrun, by which messages are lost, counts as a change.
//
// WatchRoutes returns once the subscription is in place, so no later change is missed, or an error if it fails. It
// watches the network namespace of the calling thread, and costs nothing while nothing changes.
func WatchRoutes(ctx context.Context, changed func()) error {
	// Links are included because the kernel removes IPv4 routes over a downed link without a message (fib_flush).
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("subscribing to route changes: %w", err)
	}
	context.AfterFunc(ctx, socket.Close) // wakes Receive
	watch(ctx, changed, func() ([]syscall.NetlinkMessage, error) {
		messages, _, err := socket.Receive()
		return messages, err
	})
	return nil
}

// watch reads and reports in separate goroutines, so that changed cannot delay the reading.
func watch(ctx context.Context, changed func(), receive func() ([]syscall.NetlinkMessage, error)) {
	pending := make(chan struct{}, 1)
	go readChanges(ctx, pending, receive)
	go reportChanges(ctx, pending, changed)
}

// readChanges puts a token into pending when something changed. After an error, above all ENOBUFS (overrun), a change
// may have been missed. The pause keeps a permanent error from using a whole core.
func readChanges(ctx context.Context, pending chan<- struct{}, receive func() ([]syscall.NetlinkMessage, error)) {
	for ctx.Err() == nil {
		messages, err := receive()
		if err != nil || anyRelevant(messages) {
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
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func anyRelevant(messages []syscall.NetlinkMessage) bool {
	for i := range messages {
		if isRelevant(messages[i].Header.Type, messages[i].Data) {
			return true
		}
	}
	return false
}

// isRelevant reports whether an rtnetlink message is about a change that WatchRoutes reports. A new address is not:
// it comes with a route, and each router advertisement repeats it. Cloned routes are cached by the kernel from
// traffic.
func isRelevant(kind uint16, data []byte) bool {
	switch kind {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return len(data) >= unix.SizeofRtMsg && // struct rtmsg: rtm_flags
			binary.NativeEndian.Uint32(data[8:])&unix.RTM_F_CLONED == 0
	case unix.RTM_DELADDR:
		return true
	case unix.RTM_NEWLINK:
		return len(data) >= unix.SizeofIfInfomsg && data[0] == unix.AF_UNSPEC && // struct ifinfomsg: ifi_flags, ifi_change
			binary.NativeEndian.Uint32(data[8:])&unix.IFF_UP == 0 &&
			binary.NativeEndian.Uint32(data[12:])&unix.IFF_UP != 0
	}
	return false
}
