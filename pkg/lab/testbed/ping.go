// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

const (
	icmpEcho      = 8
	icmpEchoReply = 0
	icmpLen       = 64 // as ping(8): 8 bytes of header and 56 of payload
)

// Ping implements Path.
func (l *Lab) Ping(ctx context.Context, end time.Time, count int, interval time.Duration) (rtts []time.Duration, sent int, err error) {
	return ping(ctx, l.A.App, l.Addrs(l.B)[0], end, count, interval)
}

// ping is Path.Ping from a host to an address. An answer counts if it arrives within an interval, or a second if that is more. Like
// ping(8) it takes the kernel's time of arrival, so that its own waking up does not count. One waits for the other: slow answers
// make them take longer.
func ping(ctx context.Context, from *netlab.Host, to netip.Addr, end time.Time, count int, interval time.Duration) (
	rtts []time.Duration, sent int, err error,
) {
	if !to.Is4() {
		return nil, 0, fmt.Errorf("pinging %v: want an IPv4 address", to)
	}
	p := &pinger{fd: -1, id: uint16(rand.Uint32()), dst: to.As4()}
	if err := from.Do(p.open); err != nil {
		return nil, 0, fmt.Errorf("opening an ICMP socket: %w", err)
	}
	defer unix.Close(p.fd)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ; sent < count; sent++ {
		if sent > 0 {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return nil, sent, context.Cause(ctx)
		}
		if !end.IsZero() && time.Now().After(end) {
			break
		}
		rtt, err := p.once(uint16(sent), max(interval, time.Second))
		switch {
		case errors.Is(err, unix.EAGAIN):
		case err != nil:
			return nil, sent, fmt.Errorf("pinging: %w", err)
		default:
			rtts = append(rtts, rtt)
		}
	}
	return rtts, sent, nil
}

// pinger is one raw ICMP socket.
type pinger struct {
	fd  int
	id  uint16
	dst [4]byte
}

func (p *pinger) open() (err error) {
	p.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	return errors.Join(
		unix.Connect(p.fd, &unix.SockaddrInet4{Addr: p.dst}),
		unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
	)
}

// once sends a request and waits for its answer; EAGAIN means that none arrived.
func (p *pinger) once(seq uint16, limit time.Duration) (time.Duration, error) {
	timeout := unix.NsecToTimeval(int64(limit))
	if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return 0, err
	}
	msg := echoRequest(p.id, seq)
	begin := time.Now()
	if _, err := unix.Write(p.fd, msg); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return 0, err
	}
	buf, oob := make([]byte, 1500), make([]byte, 64)
	for time.Since(begin) < limit {
		n, oobn, _, _, err := unix.Recvmsg(p.fd, buf, oob, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if isEchoReply(buf[:n], p.id, seq) {
			return arrival(oob[:oobn]).Sub(begin.Round(0)), nil
		}
	}
	return 0, unix.EAGAIN
}

// arrival is the kernel's receive timestamp, of the clock that time.Now reads; the present where there is none.
func arrival(oob []byte) time.Time {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Now()
}

// echoRequest is RFC 792's echo message.
func echoRequest(id, seq uint16) []byte {
	b := make([]byte, icmpLen)
	b[0] = icmpEcho
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	binary.BigEndian.PutUint16(b[2:], packet.Checksum(b))
	return b
}

// isEchoReply reports whether an IPv4 packet from a raw socket is the reply.
func isEchoReply(b []byte, id, seq uint16) bool {
	if len(b) < 20 {
		return false
	}
	head := int(b[0]&0xf) * 4
	if len(b) < head+8 {
		return false
	}
	b = b[head:]
	return b[0] == icmpEchoReply && binary.BigEndian.Uint16(b[4:]) == id && binary.BigEndian.Uint16(b[6:]) == seq
}
