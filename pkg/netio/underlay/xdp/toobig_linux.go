// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel announces no learned path MTU over IPv6. So the watcher also reads the Packet Too Big messages that it learns from,
// and has the paths to their destinations resolved again. Nothing else is taken from them: which of them to believe is the
// kernel's decision, which it makes by its sockets. IPv4 needs no such thing: messages leave without Don't Fragment.

const (
	icmpv6Filter       = 1 // ICMPV6_FILTER of linux/icmpv6.h
	icmpv6PacketTooBig = 2 // RFC 4443, section 3.2

	quotedDestination = 8 + 24 // offset in the message: behind its header, in the IPv6 header of the quoted packet
	quotedEnd         = 8 + 40

	// tooBigDelay is how long messages are collected before they are acted on. Raw sockets get them before the kernel has learned
	// from them, and a flood of them must not cost more than this.
	tooBigDelay = 50 * time.Millisecond
	// maxTooBig is the number of destinations that are collected. The periodic review finds the others.
	maxTooBig = 256
)

// openTooBig opens a socket that receives Packet Too Big messages in the calling thread's network namespace. It needs CAP_NET_RAW,
// as AF_XDP does.
func openTooBig() (*net.IPConn, error) {
	c, err := net.ListenIP("ip6:ipv6-icmp", &net.IPAddr{IP: net.IPv6unspecified})
	if err != nil {
		return nil, fmt.Errorf("opening a socket for Packet Too Big messages: %w", err)
	}
	raw, err := c.SyscallConn()
	if err == nil {
		var filter unix.ICMPv6Filter
		for i := range filter.Data {
			filter.Data[i] = ^uint32(0) // a set bit blocks a type
		}
		filter.Data[icmpv6PacketTooBig/32] &^= 1 << (icmpv6PacketTooBig % 32)
		var setErr error
		err = raw.Control(func(fd uintptr) {
			setErr = unix.SetsockoptICMPv6Filter(int(fd), unix.SOL_ICMPV6, icmpv6Filter, &filter)
		})
		err = errors.Join(err, setErr)
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("filtering Packet Too Big messages: %w", err)
	}
	return c, nil
}

// listenTooBig records messages of c until ctx ends. finished is done when c is closed.
func (w *watcher) listenTooBig(ctx context.Context, c *net.IPConn) {
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		_ = c.Close() // this wakes Read
		close(closed)
	})
	w.finished.Go(func() {
		buf := make([]byte, quotedEnd)
		for ctx.Err() == nil {
			to, err := readTooBig(c, buf)
			if err == nil && w.recordTooBig(to) {
				pause(ctx, tooBigDelay)
				notify(w.wake)
			}
			if err != nil {
				pause(ctx, watchErrorPause)
			}
		}
		<-closed
	})
}

// readTooBig returns the destination of the packet that a message quotes, or the zero Addr.
func readTooBig(c *net.IPConn, buf []byte) (netip.Addr, error) {
	n, _, err := c.ReadFromIP(buf)
	if err != nil {
		return netip.Addr{}, err
	}
	return tooBigDestination(buf[:n]), nil
}

// tooBigDestination returns the destination of the packet that a message quotes, or the zero Addr.
func tooBigDestination(message []byte) netip.Addr {
	if len(message) < quotedEnd || message[0] != icmpv6PacketTooBig {
		return netip.Addr{}
	}
	to, _ := netip.AddrFromSlice(message[quotedDestination:quotedEnd])
	return to
}

// recordTooBig records a destination, and reports whether it was the first since the last takeTooBig.
func (w *watcher) recordTooBig(to netip.Addr) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !to.IsValid() || len(w.tooBig) >= maxTooBig {
		return false
	}
	w.tooBig[to] = struct{}{}
	return len(w.tooBig) == 1
}

// takeTooBig returns the destinations since the last call.
func (w *watcher) takeTooBig() map[netip.Addr]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.tooBig
	w.tooBig = map[netip.Addr]struct{}{}
	return all
}
