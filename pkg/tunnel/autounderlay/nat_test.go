// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestWireGuardBehindMasqueradeGetsItsMessages has a host behind this one, whose WireGuard has this one's listen port, too.
// The masquerade keeps the port, so the answers arrive at the port of the XDP program. In turn their sender is another
// service at the peer's address, and an unrelated host.
func TestWireGuardBehindMasqueradeGetsItsMessages(t *testing.T) {
	for name, at := range map[string]netip.AddrPort{
		"from the peer's address": netip.AddrPortFrom(farAt.Addr(), 4500),
		"from another address":    netip.AddrPortFrom(farAt.Addr().Next(), 51820),
	} {
		t.Run(name, func(t *testing.T) {
			s := newXDPTestNet(t)
			server := s.addServer(at)
			behind := s.addHostBehind()
			before := s.port.Report()
			s.await("answers at the host behind", func() bool {
				_, err := behind.WriteToUDPAddrPort(message(7, 1), at)
				expect.NoError(t, err)
				return s.echo(server) && receives(t, behind)
			})
			r := s.port.Report()
			if unknown := programs.ClassifyUnknownIndex.String(); r.Path != config.UnderlayXDP || r.Events[unknown] == before.Events[unknown] {
				t.Errorf("the answers did not pass the XDP program: got %+v", r)
			}
			s.awaitMessage("a message of the peer")
		})
	}
}

// addServer opens a socket of far at an address, which it adds.
func (s *testNet) addServer(at netip.AddrPort) (server *net.UDPConn) {
	s.Helper()
	if at.Addr() != farAt.Addr() {
		expect.NoError(s, s.far.SetUp("lo", 0, netip.PrefixFrom(at.Addr(), 32)))
	}
	expect.NoError(s, s.far.Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}))
	s.Cleanup(func() { server.Close() })
	return server
}

// addHostBehind adds a host whose traffic here masquerades, and returns its socket, which has here's listen port.
func (s *testNet) addHostBehind() (socket *net.UDPConn) {
	s.Helper()
	inside, outside := netip.MustParsePrefix("198.51.100.2/24"), netip.MustParsePrefix("198.51.100.1/24")
	host, err := s.lab.Host("behind")
	expect.NoError(s, err)
	_, err = s.lab.Cable(s.here, host, netlab.CableConfig{
		Queues: 1, MTU: 1500, AddrsA: []netip.Prefix{outside}, AddrsB: []netip.Prefix{inside},
	})
	expect.NoError(s, err)
	expect.NoError(s, host.RouteVia(netip.MustParsePrefix("0.0.0.0/0"), outside.Addr()))
	if err := s.here.Masquerade(s.dev, netlab.NATPorts{}); errors.Is(err, netlab.ErrNoNftables) {
		s.Skip(err)
	} else {
		expect.NoError(s, err)
	}
	expect.NoError(s, host.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(inside.Addr(), s.port.LocalPort())))
		return err
	}))
	s.Cleanup(func() { socket.Close() })
	return socket
}

// echo answers the datagrams that have arrived, and reports whether there was one.
func (s *testNet) echo(server *net.UDPConn) (any bool) {
	s.Helper()
	buf := make([]byte, 2048)
	expect.NoError(s, server.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	for {
		n, from, err := server.ReadFromUDPAddrPort(buf)
		if err != nil {
			return any
		}
		if from.Port() != s.port.LocalPort() {
			s.Fatalf("the masquerade changed the port: got %v, want port %d", from, s.port.LocalPort())
		}
		any = true
		_, err = server.WriteToUDPAddrPort(buf[:n], from)
		expect.NoError(s, err)
	}
}

// receives reports whether a data message arrives.
func receives(t *testing.T, socket *net.UDPConn) bool {
	t.Helper()
	buf := make([]byte, 2048)
	expect.NoError(t, socket.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	n, _, err := socket.ReadFromUDPAddrPort(buf)
	return err == nil && n > 12 && binary.LittleEndian.Uint32(buf[4:]) == 7
}
