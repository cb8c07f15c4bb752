// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// lookupShare is the time for Go's resolver. The timeout of getent is as long.
const lookupShare = 5 * time.Second

// resolve looks up an endpoint's name, host:port. Without a mark getent(1) decides about the
// addresses and their order, as in wg(8). It knows no marks, so its queries may take a default
// route through the tunnel. A marked lookup asks it only for names that DNS says do not exist.
func resolve(ctx context.Context, name string, mark uint32) (device.Resolved, error) {
	host, portText, err := net.SplitHostPort(name)
	if err != nil {
		return device.Resolved{}, err
	}
	port, err := net.LookupPort("udp", portText)
	if err != nil {
		return device.Resolved{}, err
	}
	addrs, ttl, err := lookUpMarked(ctx, host, mark)
	if mark == 0 || isNotFound(err) {
		switch found, getentErr := hostnet.Getent(ctx, host); {
		case getentErr == nil:
			addrs, err = found, nil
		case err != nil && !errors.Is(getentErr, hostnet.ErrNoGetent):
			err = &hostnet.LookupError{Getent: getentErr, DNS: err}
		}
	}
	if err != nil {
		return device.Resolved{}, err
	}
	r := device.Resolved{TTL: ttl}
	for _, a := range addrs {
		ep, err := uapi.NewEndpoint(netip.AddrPortFrom(a, uint16(port)))
		if err != nil {
			return device.Resolved{}, err
		}
		r.Endpoints = append(r.Endpoints, ep)
	}
	return r, nil
}

// isNotFound reports whether the name servers have answered that there is no such name.
func isNotFound(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound
}

// lookUpMarked looks a host name up with a mark on the queries. Go's resolver does not return TTLs: ttlConn reads them from the answers. Names in
// /etc/hosts have none.
func lookUpMarked(ctx context.Context, host string, mark uint32) ([]netip.Addr, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupShare)
	defer cancel()
	var ttl minTTL
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return setMark(c, mark) }}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if udp, ok := conn.(*net.UDPConn); ok {
			return ttlConn{udp, &ttl}, err
		}
		return conn, err
	}}
	found, err := resolver.LookupIPAddr(ctx, host)
	return hostnet.Addrs(found), time.Duration(ttl.seconds.Load()) * time.Second, err
}

func setMark(c syscall.RawConn, mark uint32) error {
	if mark == 0 {
		return nil
	}
	var err error
	ctrlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)) })
	if ctrlErr != nil {
		return ctrlErr
	}
	if err != nil {
		return fmt.Errorf("setting SO_MARK: %w", err)
	}
	return nil
}

// ttlConn notes the TTLs of the answers that it reads.
type ttlConn struct {
	*net.UDPConn
	ttl *minTTL
}

// Read reads one message.
func (c ttlConn) Read(b []byte) (int, error) {
	n, err := c.UDPConn.Read(b)
	if err == nil {
		c.ttl.note(b[:n])
	}
	return n, err
}

// minTTL is the minimum TTL of address records and aliases, 0 if there was none.
type minTTL struct{ seconds atomic.Uint32 }

func (l *minTTL) note(message []byte) {
	var p dnsmessage.Parser
	if _, err := p.Start(message); err != nil || p.SkipAllQuestions() != nil {
		return
	}
	for {
		h, err := p.AnswerHeader()
		if err != nil || p.SkipAnswer() != nil {
			return
		}
		switch h.Type {
		case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeCNAME:
			for {
				least, ttl := l.seconds.Load(), max(h.TTL, 1)
				if least != 0 && least <= ttl || l.seconds.CompareAndSwap(least, ttl) {
					break
				}
			}
		}
	}
}
