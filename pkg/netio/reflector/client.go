// SPDX-License-Identifier: Apache-2.0

package reflector

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Client asks reflectors from one address of this host, which should be a tunnel's address. Its
// socket is bound to no device: the host's rules and routes decide where requests leave. An answer
// that came out of the tunnel proves that they lead through it.
type Client struct {
	conn *net.UDPConn
	port uint16

	mu     sync.Mutex
	nonces map[netip.Addr]nonce // of the requests that have no answer yet
}

type nonce [Size - len(Request)]byte

// NewClient returns a client that sends from an address of this host to reflectors at a port.
func NewClient(from netip.Addr, port uint16) (*Client, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
		if from.Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
		}
		var err error
		ctrlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
		return errors.Join(ctrlErr, err)
	}}
	conn, err := c.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(from, 0).String())
	if err != nil {
		return nil, fmt.Errorf("asking reflectors from %s: %w", from, err)
	}
	return &Client{conn: conn.(*net.UDPConn), port: port, nonces: map[netip.Addr]nonce{}}, nil
}

// Ask sends a request. Only its answer counts from then on, not the answer to an earlier request.
func (c *Client) Ask(peer netip.Addr) error {
	var n nonce
	_, _ = rand.Read(n[:]) // never fails
	c.mu.Lock()
	c.nonces[peer] = n
	c.mu.Unlock()
	if _, err := c.conn.WriteToUDPAddrPort(append([]byte(Request), n[:]...), netip.AddrPortFrom(peer, c.port)); err != nil {
		return fmt.Errorf("asking the reflector of %s: %w", peer, err)
	}
	return nil
}

// Serve calls answered for each answer until Close. An answer comes from the peer's address and
// port, with the nonce, by the device whose index device returns at that time.
func (c *Client) Serve(device func() int, answered func(peer netip.Addr)) {
	message, control := make([]byte, Size+1), make([]byte, 128)
	for {
		n, controlLen, _, from, err := c.conn.ReadMsgUDPAddrPort(message, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(errorPause)
			continue
		}
		index := deviceOf(control[:controlLen])
		peer := from.Addr().Unmap()
		if n == Size && from.Port() == c.port && index != 0 && index == device() && c.take(peer, message[:n]) {
			answered(peer)
		}
	}
}

// take reports whether a message is the answer to the last request to a peer, for the first time.
func (c *Client) take(peer netip.Addr, message []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, asked := c.nonces[peer]
	if !asked || !bytes.Equal(message, append([]byte(Answer), n[:]...)) {
		return false
	}
	delete(c.nonces, peer)
	return true
}

// deviceOf returns the index of the device by which a datagram came; 0: unknown.
func deviceOf(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		h, info := m.Header, m.Data
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(info) >= unix.SizeofInet4Pktinfo:
			return int(binary.NativeEndian.Uint32(info)) // ipi_ifindex is first
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(info) >= unix.SizeofInet6Pktinfo:
			return int(binary.NativeEndian.Uint32(info[16:])) // ipi6_ifindex follows the address
		}
	}
	return 0
}

// Close ends Serve.
func (c *Client) Close() error { return c.conn.Close() }
