// SPDX-License-Identifier: Apache-2.0

package toobig

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// enterNamespace moves the test's goroutine into a new network namespace with a loopback device.
func enterNamespace(t *testing.T) {
	t.Helper()
	namespace.Enter(t)
	lo, err := netlink.LinkByName("lo")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkSetUp(lo))
}

// sealICMP sets the checksum of an ICMP message over IPv4.
func sealICMP(b []byte) []byte {
	b[2], b[3] = 0, 0
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i : i+2]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	return b
}

// TestReportsArriveAmidOtherErrors sends port unreachables, reports about other UDP packets, and few reports about data messages.
func TestReportsArriveAmidOtherErrors(t *testing.T) {
	enterNamespace(t)
	for _, tt := range []struct {
		network, to string
		message     func() []byte
		at          int // of the byte that makes it another error
		other       byte
		quotedUDP   int
	}{
		{"ip4:icmp", "127.0.0.1", message4, 1, 3, icmpHeaderLen + packet.IPv4HeaderLen},
		{"ip6:ipv6-icmp", "::1", message6, 0, 1, icmpHeaderLen + packet.IPv6HeaderLen},
	} {
		t.Run(tt.network, func(t *testing.T) {
			seen := make(chan Message, 100)
			l, err := Listen(func(m *Message) {
				kept := *m
				kept.Payload = bytes.Clone(m.Payload)
				seen <- kept
			})
			expect.NoError(t, err)
			t.Cleanup(func() { expect.NoError(t, l.Close()) })
			to, err := net.ResolveIPAddr("ip", tt.to)
			expect.NoError(t, err)
			c, err := net.ListenIP(tt.network, to)
			expect.NoError(t, err)
			defer func() { expect.NoError(t, c.Close()) }()

			report := tt.message()
			copy(report[tt.quotedUDP+packet.UDPHeaderLen:], []byte{4, 0, 0, 0})
			unreachable := append([]byte(nil), report...)
			unreachable[tt.at] = tt.other
			elsewhere := tt.message() // quotes another payload
			short := report[:tt.quotedUDP+packet.UDPHeaderLen]

			const reports = 50
			for range reports {
				for range 100 {
					for _, b := range [][]byte{unreachable, elsewhere, short} {
						_, err := c.WriteTo(sealICMP(append([]byte(nil), b...)), to)
						expect.NoError(t, err)
					}
				}
				_, err := c.WriteTo(sealICMP(report), to)
				expect.NoError(t, err)
			}
			for n := range reports {
				select {
				case m := <-seen:
					if m.Link != 1 || m.By.String() != tt.to {
						t.Fatalf("the message came from %s at interface %d, want %s at the loopback device", m.By, m.Link, tt.to)
					}
					if m.MTU != 1400 || len(m.Payload) == 0 || m.Payload[0] != 4 {
						t.Fatalf("got %+v", m)
					}
				case <-time.After(10 * time.Second):
					t.Fatalf("got %d of %d reports", n, reports)
				}
			}
			select {
			case m := <-seen:
				t.Errorf("got %+v, too", m)
			default:
			}
		})
	}
}
