// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	mixedRounds    = 40
	mixedDatagrams = 16 // per round
	// stalledRound is a duration in which a receiver that gets no CPU time may miss three reports about a port, 150 ms apart. Its flows then leave
	// for another port. Other rounds take a few milliseconds.
	stalledRound = 250 * time.Millisecond
)

// mixedSizes are payload sizes of one flow. The largest need fragments.
var mixedSizes = []int{600, 600, 2600, 600, 8000}

// fourLanes is ropewalk with four lanes, on machines with fewer processors, too.
var fourLanes = implementation{name: ropewalk.name, need: ropewalk.need, start: func(t *testing.T, h *host, ifname string) func() error {
	t.Helper()
	return startDaemon(t, h, ropewalkBinary.Need(t), "run", "--lanes", "4", ifname)
}}

// TestFlowKeepsOrderAroundUnusualPackets sends UDP flows in which some packets do not look like the others: datagrams in fragments, and with
// IPv6 extension headers. All packets of a flow take one lane and one source port, so none overtakes another.
func TestFlowKeepsOrderAroundUnusualPackets(t *testing.T) {
	forPairings(t, []pairing{{fourLanes, fourLanes}}, func(t *testing.T, p pairing) {
		l := newLab(t, p, false)
		l.start(t)
		serveEcho(t, l.right.host)
		for _, v6 := range []bool{false, true} {
			t.Run(familyName(v6), func(t *testing.T) {
				exchange(t, l.left, l.right.inner(v6), 100)
				for port := range 4 {
					sendMixedFlow(t, l.left, l.right, v6, sinkPort+port)
				}
			})
		}
	})
}

// sendMixedFlow sends one flow in rounds, and fails if a datagram arrives after one that was sent later. A slow machine may lose some, and
// in a stalledRound one may be late.
func sendMixedFlow(t *testing.T, from, to *tunnel, v6 bool, port int) {
	t.Helper()
	sink := listenUDP(t, to.host, port)
	defer sink.Close()
	expect.NoError(t, setOption(sink, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	out, err := dialUDP(from.host, netip.AddrPortFrom(to.inner(v6), uint16(port)))
	expect.NoError(t, err)
	defer out.Close()
	buf, next := make([]byte, 1<<16), uint32(0)
	received := make([]int, len(mixedSizes)) // by the place of its size
	var late []uint32
	var took [mixedRounds]time.Duration
	for sent := uint32(0); sent < mixedRounds*mixedDatagrams; {
		round, began := sent/mixedDatagrams, time.Now()
		for range mixedDatagrams {
			if v6 {
				expect.NoError(t, setDestinationOptions(out, sent%3 == 0))
			}
			_, err := out.Write(mixedDatagram(sent))
			expect.NoError(t, err)
			sent++
		}
		for next < sent {
			expect.NoError(t, sink.SetReadDeadline(time.Now().Add(2*time.Second)))
			n, err := sink.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break // the last ones were lost
			}
			expect.NoError(t, err)
			number := binary.BigEndian.Uint32(buf)
			if !bytes.Equal(buf[:n], mixedDatagram(number)) {
				t.Fatalf("port %d: datagram %d differs", port, number)
			}
			if number < next {
				t.Logf("port %d: datagram %d arrived after %d", port, number, next-1)
				late = append(late, number)
			}
			received[int(number)%len(mixedSizes)]++
			next = max(next, number+1)
		}
		took[round] = time.Since(began)
	}
	for _, number := range late {
		if d := took[number/mixedDatagrams]; d < stalledRound {
			t.Errorf("port %d: datagram %d was overtaken in a round of %s", port, number, d)
		}
	}
	if all := mixedRounds * mixedDatagrams / len(mixedSizes); slices.Min(received) < all/2 {
		t.Fatalf("port %d: got %v datagrams of sizes %v, want at least half of %d each", port, received, mixedSizes, all)
	}
}

func mixedDatagram(number uint32) []byte {
	b := pattern(mixedSizes[int(number)%len(mixedSizes)], uint64(number))
	binary.BigEndian.PutUint32(b, number)
	return b
}

// setDestinationOptions makes each datagram carry an extension header with padding (RFC 3542, section 9), or none.
func setDestinationOptions(c *net.UDPConn, on bool) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	header := ""
	if on {
		header = "\x00\x00\x01\x04\x00\x00\x00\x00"
	}
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		sockErr = unix.SetsockoptString(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, header)
	})
	if err := errors.Join(err, sockErr); err != nil {
		return fmt.Errorf("setting destination options: %w", err)
	}
	return nil
}
