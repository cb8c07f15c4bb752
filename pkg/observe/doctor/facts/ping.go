// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// marked returns a Control function that sets SO_MARK. Mark 0 needs no privilege.
func marked(mark uint32) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if mark == 0 {
			return nil
		}
		ctlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)) })
		return errors.Join(ctlErr, err)
	}
}

// sendDatagram sends datagrams of one byte, which WireGuard drops without an answer, to the
// endpoint from a port of its own. The error is the system call's, or comes from an ICMP error;
// nil if nothing came back.
func sendDatagram(ctx context.Context, to config.Endpoint, mark uint32) error {
	dialer := net.Dialer{Control: marked(mark)}
	conn, err := dialer.DialContext(ctx, "udp", withScope(to))
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline := time.Now().Add(pingPatience)
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{0}); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return nil
	}
	return err
}

// withScope returns the endpoint as text for net.Dial.
func withScope(to config.Endpoint) string {
	addr := to.AddrPort.Addr()
	if to.Scope != 0 && addr.Is6() {
		addr = addr.WithZone(fmt.Sprint(to.Scope))
	}
	return netip.AddrPortFrom(addr, to.AddrPort.Port()).String()
}

// errNoAnswer is the error of an unanswered ping.
var errNoAnswer = errors.New("no answer")

// ping sends an ICMP echo request and returns the time to its answer.
func ping(ctx context.Context, to netip.Addr, scope, mark uint32) (time.Duration, error) {
	network, kind, answer, protocol := "ip4:icmp", icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply), unix.IPPROTO_ICMP
	if to = to.Unmap(); to.Is6() {
		network, kind, answer, protocol = "ip6:ipv6-icmp", ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, unix.IPPROTO_ICMPV6
	}
	listener := net.ListenConfig{Control: marked(mark)}
	conn, err := listener.ListenPacket(ctx, network, "")
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	echo := &icmp.Echo{ID: rand.IntN(1 << 16), Seq: 1, Data: []byte("ropewalk doctor")}
	message, err := (&icmp.Message{Type: kind, Body: echo}).Marshal(nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := conn.SetDeadline(began.Add(pingPatience)); err != nil {
		return 0, err
	}
	destination := &net.IPAddr{IP: to.AsSlice()}
	if scope != 0 {
		destination.Zone = fmt.Sprint(scope)
	}
	if _, err := conn.WriteTo(message, destination); err != nil {
		return 0, err
	}
	err = awaitEcho(conn, protocol, answer, echo)
	return time.Since(began), err
}

// awaitEcho reads until the answer to an echo request.
func awaitEcho(conn net.PacketConn, protocol int, answer icmp.Type, want *icmp.Echo) error {
	buf := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(buf)
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
			return errNoAnswer
		}
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(protocol, buf[:n])
		if err != nil || m.Type != answer {
			continue
		}
		if got, ok := m.Body.(*icmp.Echo); ok && got.ID == want.ID && got.Seq == want.Seq {
			return nil
		}
	}
}
