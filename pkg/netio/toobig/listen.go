// SPDX-License-Identifier: Apache-2.0

package toobig

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// quotedMax is the number of bytes of a message that are read. It covers an ICMP header, the
	// longest IPv4 header, a UDP header and the header of a data message. Over IPv4 another header
	// is in front of them.
	quotedMax = 60 + icmpHeaderLen + 60 + packet.UDPHeaderLen + wire.DataHeaderLen
	// pauseAfter is the number of messages after which a reader sleeps for pause: a flood of them costs little.
	pauseAfter = 4
	pause      = time.Millisecond
	// pauseAfterError is the pause after an error of a socket.
	pauseAfterError = time.Second
)

// Listener reads messages until Close.
type Listener struct {
	conns   []*conn
	readers sync.WaitGroup
	closed  chan struct{}
}

// Listen calls f for each message that this host receives and that quotes a data message, in the
// network namespace of the calling thread. It reads up to 4,000 per second and address family. f
// runs in one goroutine per address family, and its argument is valid only during the call. Listen
// needs CAP_NET_RAW. Without IPv6 on this host it reads IPv4 alone.
func Listen(f func(*Message)) (*Listener, error) {
	l := &Listener{closed: make(chan struct{})}
	v4, err := open("ip4:icmp", net.IPv4zero, filter4, parse4)
	if err != nil {
		return nil, err
	}
	l.conns = append(l.conns, v4)
	v6, err := open("ip6:ipv6-icmp", net.IPv6unspecified, filter6, parse6)
	switch {
	case err == nil:
		l.conns = append(l.conns, v6)
	case !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, errors.Join(err, v4.Close())
	}
	for _, c := range l.conns {
		l.readers.Go(func() { l.read(c, f) })
	}
	return l, nil
}

// conn is the socket of an address family.
type conn struct {
	*net.IPConn
	read  readFunc
	parse func([]byte, *Message) bool
}

// readFunc reads a message, and returns its length, the interface index at which it arrived, and its sender.
type readFunc func(buf []byte) (n, link int, by net.Addr, err error)

// reader returns a readFunc. index returns the interface index in a control message.
func reader[C any](read func([]byte) (int, *C, net.Addr, error), index func(*C) int) readFunc {
	return func(buf []byte) (n, link int, by net.Addr, err error) {
		n, control, by, err := read(buf)
		if control != nil {
			link = index(control)
		}
		return n, link, by, err
	}
}

// open opens a raw socket that receives only the wanted messages.
func open(network string, any net.IP, filter func(*net.IPConn) (readFunc, error), parse func([]byte, *Message) bool) (*conn, error) {
	c, err := net.ListenIP(network, &net.IPAddr{IP: any})
	if err != nil {
		return nil, fmt.Errorf("opening a socket for ICMP errors (needs CAP_NET_RAW): %w", err)
	}
	read, err := filter(c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("filtering ICMP errors: %w", err), c.Close())
	}
	return &conn{c, read, parse}, nil
}

// read passes the messages of a socket to f until Close. Only messages that passed the filter count towards the pause, so other ICMP
// traffic of the host takes no turns from them.
func (l *Listener) read(c *conn, f func(*Message)) {
	buf := make([]byte, quotedMax)
	var m Message
	for passed := 0; ; {
		n, link, by, err := c.read(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if !l.sleep(pauseAfterError) {
				return
			}
		case c.parse(buf[:n], &m):
			m.By, m.Link = addrOf(by), link
			f(&m)
			if passed++; passed%pauseAfter == 0 && !l.sleep(pause) {
				return
			}
		}
	}
}

func addrOf(a net.Addr) netip.Addr {
	if ip, ok := a.(*net.IPAddr); ok {
		addr, _ := netip.AddrFromSlice(ip.IP)
		return addr.Unmap()
	}
	return netip.Addr{}
}

// sleep returns false if the Listener was closed.
func (l *Listener) sleep(d time.Duration) bool {
	select {
	case <-l.closed:
		return false
	case <-time.After(d):
		return true
	}
}

// Close ends Listen. It returns when f is not running any more, and f must not call it.
func (l *Listener) Close() (err error) {
	close(l.closed)
	for _, c := range l.conns {
		err = errors.Join(err, c.Close())
	}
	l.readers.Wait()
	return err
}
