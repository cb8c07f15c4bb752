// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestHandshakesAreMarked sends handshake messages and data to sockets that report the TOS byte, or the traffic class.
func TestHandshakesAreMarked(t *testing.T) {
	for name, c := range map[string]struct {
		family, level, option int
		at                    unix.Sockaddr
		host                  string
	}{
		"IPv4": {unix.AF_INET, unix.SOL_IP, unix.IP_RECVTOS, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, "127.0.0.1"},
		"IPv6": {unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_RECVTCLASS, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}, "::1"},
	} {
		t.Run(name, func(t *testing.T) {
			enterNamespace(t)
			fd, err := unix.Socket(c.family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			expect.NoError(t, err)
			defer func() { expect.NoError(t, unix.Close(fd)) }()
			expect.NoError(t, unix.SetsockoptInt(fd, c.level, c.option, 1))
			expect.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
			if err := unix.Bind(fd, c.at); err != nil {
				t.Skip(err)
			}
			port, err := (&socket{fd: fd}).localPort()
			expect.NoError(t, err)
			to := underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr(c.host), port)}
			p := open(t, Config{})
			tos := func() byte {
				control := make([]byte, 64)
				_, n, _, _, err := unix.Recvmsg(fd, make([]byte, 200), control, 0)
				expect.NoError(t, err)
				messages, err := unix.ParseSocketControlMessage(control[:n])
				expect.NoError(t, err)
				if len(messages) != 1 {
					t.Fatalf("got %d control messages, want 1", len(messages))
				}
				return messages[0].Data[0]
			}
			for range 2 {
				expect.NoError(t, p.SendTo(&to, make([]byte, 148)))
				if got := tos(); got != 0x88 {
					t.Errorf("handshake: got TOS %#x, want 0x88", got)
				}
				for _, ecn := range []packet.ECN{packet.NotECT, packet.ECT0} {
					expect.NoError(t, p.SendRun(&underlay.Run{To: &to, Parts: [][]byte{make([]byte, 100)}, SegSize: 100, Segments: 1, ECN: ecn}))
					if got := tos(); got != byte(ecn) {
						t.Errorf("data: got TOS %#x, want %#x", got, byte(ecn))
					}
				}
			}
		})
	}
}
