// SPDX-License-Identifier: Apache-2.0

// Package reflector answers datagrams that arrive on one network device, so that their sender
// knows that its packets to this host arrive there. Bound to the device of a tunnel, it answers
// nothing that came beside the tunnel. Datagrams that this host's processes send to an address of
// the device also reach it (net/ipv4/route.c, orig_oif). Their source is an address of this host,
// which admit should refuse.
//
// A request and an answer have Size bytes: four that name the kind, and a nonce of the sender's choice. A reflector answers no answer, so two
// reflectors never answer each other, and it sends no more bytes than it has received. The answer comes from the address to which the
// request was sent.
//
// Not for other programs: it may change without notice.
package reflector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

const (
	// Size is the length of a request, and of an answer, in bytes.
	Size = len(Request) + 16
	// Request and Answer begin the messages.
	Request = "rwq1"
	Answer  = "rwa1"
)

// errorPause is the time to the next attempt to receive after an error.
const errorPause = 100 * time.Millisecond

// Reflector is a UDP socket. The methods of a nil Reflector do nothing.
type Reflector struct {
	conn              *net.UDPConn
	port              uint16
	answered, ignored atomic.Uint64
}

// Listen binds a socket to a port of all addresses of the device with an index. Several processes of one user may do so at once, as during an
// upgrade: each datagram reaches one of them. If another program holds the port, the error is syscall.EADDRINUSE.
func Listen(index int, port uint16) (*Reflector, error) {
	if index <= 0 { // the option would leave the socket unbound
		return nil, fmt.Errorf("listening for datagrams to reflect: the device is not in this network namespace: %w", unix.ENODEV)
	}
	c := net.ListenConfig{Control: func(network, _ string, raw syscall.RawConn) error {
		var err error
		ctrlErr := raw.Control(func(fd uintptr) { err = setOptions(int(fd), network, index) })
		return errors.Join(ctrlErr, err)
	}}
	conn, err := c.ListenPacket(context.Background(), "udp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("listening for datagrams to reflect: %w", err)
	}
	return &Reflector{conn: conn.(*net.UDPConn), port: port}, nil
}

// setOptions binds a socket to a device, and makes it report to which address each datagram was sent.
func setOptions(fd int, network string, index int) error {
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if network == "udp6" {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO // also of IPv4 datagrams
	}
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		unix.SetsockoptInt(fd, level, option, 1),
	)
}

// Serve answers until Close. admit reports whether to answer a request from an address.
func (r *Reflector) Serve(admit func(from netip.Addr) bool) {
	if r == nil {
		return
	}
	message, control := make([]byte, Size+1), make([]byte, 128)
	for {
		n, controlLen, _, from, err := r.conn.ReadMsgUDPAddrPort(message, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(errorPause)
			continue
		}
		if n == Size && bytes.HasPrefix(message, []byte(Request)) && admit(from.Addr().Unmap()) {
			copy(message, Answer)
			// The control message has the address and device of the request, and so for the answer.
			if _, _, err = r.conn.WriteMsgUDPAddrPort(message[:Size], control[:controlLen], from); err == nil {
				r.answered.Add(1)
				continue
			}
		}
		r.ignored.Add(1)
	}
}

// Report returns the counters, nil for a nil Reflector.
func (r *Reflector) Report() *config.ReflectorReport {
	if r == nil {
		return nil
	}
	return &config.ReflectorReport{Port: r.port, Answered: r.answered.Load(), Ignored: r.ignored.Load()}
}

// Close ends Serve.
func (r *Reflector) Close() error {
	if r == nil {
		return nil
	}
	return r.conn.Close()
}
