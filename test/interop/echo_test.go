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

	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	echoPort = 7
	sinkPort = 9
)

// listenUDP opens a dual-stack UDP socket in a host. It is closed when the test ends.
func listenUDP(t *testing.T, h *host, port int) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	expect.NoError(t, h.do(func() (err error) {
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

// serveEcho sends each datagram back until the test ends.
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

// retryInterval is the time after which a datagram without an echo is considered lost.
const retryInterval = 500 * time.Millisecond

// exchange sends a datagram of size bytes through the tunnel from x and waits for its echo. It retries until an echo arrives, so
// it does not prove that no packet is lost.
func exchange(t *testing.T, x *tunnel, to netip.Addr, size int) {
	t.Helper()
	if err := tryExchange(x, to, size, retryInterval, patience); err != nil {
		t.Fatalf("%s: got error %v, want none", x, err)
	}
}

// tryExchange repeats the exchange every interval, until limit.
func tryExchange(x *tunnel, to netip.Addr, size int, interval, limit time.Duration) error {
	return repeatExchange(x, netip.AddrPortFrom(to, echoPort), interval, limit, func(*net.UDPConn) []byte {
		return pattern(size, rand.Uint64())
	})
}

// repeatExchange uses a new socket and a new payload for each attempt. A retry of the same datagram would not help if its checksum
// is 0, which wireguard-go always loses.
func repeatExchange(x *tunnel, to netip.AddrPort, interval, limit time.Duration, payload func(*net.UDPConn) []byte) error {
	for deadline := time.Now().Add(limit); ; {
		err := exchangeOnce(x, to, interval, payload)
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
		time.Sleep(time.Until(deadline)) // a refused connection returns at once
		return errors.Join(fmt.Errorf("%w of %d bytes from %s", errNoEcho, len(sent), to), sendErr, err)
	case !bytes.Equal(got[:n], sent):
		return fmt.Errorf("the echo of %d bytes differs: %d bytes", len(sent), n)
	}
	return nil
}

// pattern returns n pseudo-random bytes that depend only on the seed.
func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}
