// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// bulk is TCP traffic between two tunnels. In each stream both ends send at the same time, and both check every received byte.
type bulk struct {
	from, to *tunnel
	v6       bool
	streams  int
	bytes    int // per stream and direction
	// halfway, when set, runs once in the middle of the first stream's transfer.
	halfway func() error
}

const bulkLimit = 3 * time.Minute

func (b bulk) run(t *testing.T) {
	t.Helper()
	expect.NoError(t, b.carry())
}

// carry transfers all streams. Unlike run it may be called from any goroutine.
func (b bulk) carry() error {
	var ln net.Listener
	err := b.to.host.do(func() (err error) {
		ln, err = net.ListenTCP("tcp", &net.TCPAddr{IP: b.to.inner(b.v6).AsSlice()})
		return err
	})
	if err != nil {
		return err
	}
	defer ln.Close()
	results := make(chan error, 2*b.streams)
	var transfers []func() error // they begin when all are connected: halfway may take the network away
	addr := netip.AddrPortFrom(b.to.inner(b.v6), uint16(ln.Addr().(*net.TCPAddr).Port))
	for i := range b.streams {
		// One after the other, so that connections are accepted in the order in which they are dialled.
		client, err := dialTCP(b.from.host, addr)
		if err != nil {
			return err
		}
		defer client.Close()
		server, err := ln.Accept()
		if err != nil {
			return err
		}
		defer server.Close()
		up, down := pattern(b.bytes, uint64(2*i)), pattern(b.bytes, uint64(2*i+1))
		halfway := b.halfway
		if i > 0 {
			halfway = nil
		}
		transfers = append(transfers,
			func() error { return transfer(client, up, down, halfway) }, func() error { return transfer(server, down, up, nil) })
	}
	for _, transfer := range transfers {
		go func() { results <- transfer() }()
	}
	for range 2 * b.streams {
		err = errors.Join(err, <-results)
	}
	return err
}

func dialTCP(h *host, to netip.AddrPort) (c *net.TCPConn, err error) {
	err = h.do(func() error {
		// Not a Dialer, which may open its sockets on other threads and thus in another namespace.
		c, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
		return err
	})
	return c, err
}

// transfer writes send to c while it reads, and checks that it reads exactly expect.
func transfer(c net.Conn, send, expect []byte, halfway func() error) error {
	if err := c.SetDeadline(time.Now().Add(bulkLimit)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		half := len(send) / 2
		_, err := c.Write(send[:half])
		if err == nil && halfway != nil {
			err = halfway()
		}
		if err == nil {
			_, err = c.Write(send[half:])
		}
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, expect) {
		err = fmt.Errorf("received %d bytes, want %d; the first difference is at %d", len(got), len(expect), difference(got, expect))
	}
	return errors.Join(err, <-sent)
}

// difference returns the index of the first byte that differs.
func difference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
