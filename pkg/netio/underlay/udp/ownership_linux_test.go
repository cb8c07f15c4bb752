// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// bindShared binds a socket of another program of the same user, which sets SO_REUSEPORT.
func bindShared(t *testing.T, addr string, port uint16) error {
	t.Helper()
	to, family := netip.MustParseAddr(addr), unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	fd, err := newSocket(family)
	expect.NoError(t, err)
	defer func() { expect.NoError(t, unix.Close(fd)) }()
	expect.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	if family == unix.AF_INET6 {
		return unix.Bind(fd, &unix.SockaddrInet6{Port: int(port), Addr: to.As16()})
	}
	return unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: to.As4()})
}

// expectOwned tries to bind the ports of p as another program.
func expectOwned(t *testing.T, p *Port) {
	t.Helper()
	addresses := []string{"0.0.0.0", "127.0.0.1"}
	if p.family == unix.AF_INET6 {
		addresses = append(addresses, "::", "::1")
	}
	for source := range p.sources.Len() {
		for _, addr := range addresses {
			if err := bindShared(t, addr, p.Source(source)); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("another program binds %s of source %d: got error %v, want %v", addr, source, err, unix.EADDRINUSE)
			}
		}
	}
}

// TestOtherProgramCannotJoinPorts: the kernel looks for conflicts in another list if there are more than ten sockets.
func TestOtherProgramCannotJoinPorts(t *testing.T) {
	for _, lanes := range []int{1, 2, 3, 16} {
		for _, noIPv6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d lanes, NoIPv6 %v", lanes, noIPv6), func(t *testing.T) {
				requireNamespace(t)
				p := open(t, Config{Lanes: lanes, NoIPv6: noIPv6})
				expectOwned(t, p)
				source := openSource(t, p)
				expectOwned(t, p)
				for group := 1; group < underlay.MaxGroups; group++ {
					expect.NoError(t, p.OpenGroup(group))
				}
				for _, s := range []int{0, source} {
					expect.NoError(t, p.openOwn(probeGroup, s))
				}
				expectOwned(t, p)
				if n := countSockets(p); n != (lanes+1)+2*underlay.MaxGroups+1 {
					t.Errorf("the port has %d sockets", n)
				}
				expectAllLanesReceive(t, p)
			})
		}
	}
}

// countSockets returns the number of sockets of p but the holder.
func countSockets(p *Port) (n int) {
	for range p.sockets {
		n++
	}
	return n
}

// expectAllLanesReceive sends from many ports, until each lane of p has received one datagram.
func expectAllLanesReceive(t *testing.T, p *Port) {
	t.Helper()
	addresses := []string{"127.0.0.1"}
	if p.family == unix.AF_INET6 {
		addresses = append(addresses, "::1")
	}
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	for _, addr := range addresses {
		to := underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), p.LocalPort())}
		for i := range p.lanes {
			expect.Eventually(t, fmt.Sprintf("lane %d receives from %s", i, addr), func() bool {
				from, err := Open(Config{})
				expect.NoError(t, err)
				defer func() { expect.NoError(t, from.Close()) }()
				runs := []underlay.Run{small(&to, 0, 0)}
				if from.Lane(0).Send(runs) != 0 {
					t.Fatal(runs[0].Err)
				}
				return p.lanes[i].TryRecv(rx) > 0
			})
		}
	}
}

// TestOtherProgramCannotJoinKeptPorts passes the sockets to another Port twice, as upgrades in place do.
func TestOtherProgramCannotJoinKeptPorts(t *testing.T) {
	for _, lanes := range []int{1, 2, 16} {
		t.Run(fmt.Sprint(lanes, " lanes"), func(t *testing.T) {
			requireNamespace(t)
			p := open(t, Config{Lanes: lanes})
			openSource(t, p)
			for range 2 {
				kept, err := p.Keep()
				expect.NoError(t, err)
				expectOwned(t, p)
				expect.NoError(t, p.Close())
				p = open(t, Config{Lanes: lanes, Sockets: kept})
				expectOwned(t, p)
				if g := p.groups[controlGroup].Load(); g == nil {
					t.Error("the new port has no control group")
				}
			}
			expectAllLanesReceive(t, p)
		})
	}
}
