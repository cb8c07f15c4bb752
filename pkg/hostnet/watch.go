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

// settle is how long a burst of changes may last before it is reported: time enough for a daemon to take one route out
// and put another in.
const settle = 100 * time.Millisecond

// WatchRoutes calls changed after each change that may lead packets another way or leave them with a source address
// that is gone: a route of either family added, replaced or removed, an address removed, a link set down. Changes that
// follow each other within 100 ms are one; a call that lasts delays only the next. changed is called from a goroutine of
// its own until ctx ends. Should the kernel have had to discard messages, that counts as a change.
//
// It returns when the subscription is in place, so that no later change is missed, or with the reason why there is none.
// It watches the network namespace that the calling thread is in, and costs nothing while nothing changes.
func WatchRoutes(ctx context.Context, changed func()) error {
	// Links, because IPv4 routes over a link that goes down vanish without a message (fib_flush).
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("subscribing to route changes: %w", err)
	}
	context.AfterFunc(ctx, socket.Close) // which wakes Receive
	watch(ctx, changed, func() ([]syscall.NetlinkMessage, error) {
		messages, _, err := socket.Receive()
		return messages, err
	})
	return nil
}

// watch starts to read and to report, apart: whatever changed does, messages are taken as they come.
func watch(ctx context.Context, changed func(), receive func() ([]syscall.NetlinkMessage, error)) {
	pending := make(chan struct{}, 1)
	go readChanges(ctx, pending, receive)
	go reportChanges(ctx, pending, changed)
}

// readChanges leaves a token in pending when something changed. An error, ENOBUFS above all, says that a change may have
// been missed; the pause keeps a lasting one from taking a core.
func readChanges(ctx context.Context, pending chan<- struct{}, receive func() ([]syscall.NetlinkMessage, error)) {
	for ctx.Err() == nil {
		messages, err := receive()
		if err != nil || anyMatters(messages) {
			select {
			case pending <- struct{}{}:
			default:
			}
		}
		if err != nil {
			pause(ctx, settle)
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
		if !pause(ctx, settle) {
			return
		}
		select {
		case <-pending: // part of the same burst
		default:
		}
		changed()
	}
}

// pause returns false when ctx ended first.
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

func anyMatters(messages []syscall.NetlinkMessage) bool {
	for i := range messages {
		if matters(messages[i].Header.Type, messages[i].Data) {
			return true
		}
	}
	return false
}

// matters says whether an rtnetlink message is about a change that WatchRoutes reports. A new address alone is none: it
// comes with a route, and each router advertisement repeats it. Cloned routes are what the kernel learned from traffic.
func matters(kind uint16, data []byte) bool {
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
