// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"
)

const (
	echoPort = 7
	sinkPort = 9
)

// listenUDP opens a UDP socket of both IP versions in a host, closed when the test ends.
func listenUDP(t *testing.T, h *host, port int) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	must(t, h.do(func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// dialUDP opens a connected UDP socket in a host.
func dialUDP(h *host, to netip.AddrPort) (c *net.UDPConn, err error) {
	err = h.do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	return c, err
}

// serveEcho answers each datagram with itself until the test ends.
func serveEcho(t *testing.T, h *host) {
	t.Helper()
	c := listenUDP(t, h, echoPort)
	go func() {
		buf := make([]byte, 65535)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
}

// exchange sends a datagram of size bytes through the tunnel from x and waits for its echo. It repeats itself until the
// echo is there: no test of exchange proves that nothing is lost.
func exchange(t *testing.T, x *tunnel, to netip.Addr, size int) {
	t.Helper()
	if err := tryExchange(x, to, size, 500*time.Millisecond, patience); err != nil {
		t.Fatalf("%s: %v", x, err)
	}
}

// tryExchange repeats the datagram every again, until limit.
func tryExchange(x *tunnel, to netip.Addr, size int, again, limit time.Duration) error {
	c, err := dialUDP(x.host, netip.AddrPortFrom(to, echoPort))
	if err != nil {
		return err
	}
	defer c.Close()
	sent, got := pattern(size, rand.Uint64()), make([]byte, 65535)
	for deadline := time.Now().Add(limit); ; {
		_, sendErr := c.Write(sent)
		_ = c.SetReadDeadline(time.Now().Add(again))
		n, err := c.Read(got)
		switch {
		case err == nil && bytes.Equal(got[:n], sent):
			return nil
		case err == nil:
			return fmt.Errorf("the echo of %d bytes has %d, or other ones", size, n)
		case time.Now().After(deadline):
			return errors.Join(fmt.Errorf("no echo of %d bytes from %s in %s", size, to, limit), sendErr)
		}
	}
}

// pattern returns n pseudo-random bytes; the same for the same seed.
func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}
