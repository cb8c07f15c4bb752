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

// again is when a datagram without an echo is taken for lost.
const again = 500 * time.Millisecond

// exchange sends a datagram of size bytes through the tunnel from x and waits for its echo. It repeats itself until the
// echo is there: no test of exchange proves that nothing is lost.
func exchange(t *testing.T, x *tunnel, to netip.Addr, size int) {
	t.Helper()
	if err := tryExchange(x, to, size, again, patience); err != nil {
		t.Fatalf("%s: %v", x, err)
	}
}

// tryExchange repeats the exchange every again, until limit.
func tryExchange(x *tunnel, to netip.Addr, size int, again, limit time.Duration) error {
	return repeatExchange(x, netip.AddrPortFrom(to, echoPort), again, limit, func(*net.UDPConn) []byte {
		return pattern(size, rand.Uint64())
	})
}

// repeatExchange takes a new socket and a new payload each time: wireguard-go loses, every time, the datagram whose
// checksum comes out as 0.
func repeatExchange(x *tunnel, to netip.AddrPort, again, limit time.Duration, payload func(*net.UDPConn) []byte) error {
	for deadline := time.Now().Add(limit); ; {
		err := exchangeOnce(x, to, again, payload)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, errNoEcho):
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("%w in %s", err, limit)
		}
	}
}

var errNoEcho = errors.New("no echo")

func exchangeOnce(x *tunnel, to netip.AddrPort, wait time.Duration, payload func(*net.UDPConn) []byte) error {
	c, err := dialUDP(x.host, to)
	if err != nil {
		return err
	}
	defer c.Close()
	sent, got, deadline := payload(c), make([]byte, 65535), time.Now().Add(wait)
	_, sendErr := c.Write(sent)
	_ = c.SetReadDeadline(deadline)
	n, err := c.Read(got)
	switch {
	case err != nil:
		time.Sleep(time.Until(deadline)) // one refused does not wait by itself
		return errors.Join(fmt.Errorf("%w of %d bytes from %s", errNoEcho, len(sent), to), sendErr, err)
	case !bytes.Equal(got[:n], sent):
		return fmt.Errorf("the echo of %d bytes has %d, or other ones", len(sent), n)
	}
	return nil
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
