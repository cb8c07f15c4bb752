// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// bindShared binds a socket of another program of the same user, which sets SO_REUSEPORT, and closes it.
func bindShared(t *testing.T, addr string, port uint16) error {
	t.Helper()
	fd, err := bindSharedOn(t, "", addr, port)
	expect.NoError(t, unix.Close(fd))
	return err
}

// bindSharedOn is bindShared on a device, if it has a name. The caller closes the socket.
func bindSharedOn(t *testing.T, device, addr string, port uint16) (int, error) {
	t.Helper()
	to, family := netip.MustParseAddr(addr), unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	fd, err := newSocket(family)
	expect.NoError(t, err)
	expect.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	if device != "" {
		expect.NoError(t, unix.BindToDevice(fd, device))
	}
	if family == unix.AF_INET6 {
		return fd, unix.Bind(fd, &unix.SockaddrInet6{Port: int(port), Addr: to.As16()})
	}
	return fd, unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: to.As4()})
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

// TestProgramThatJoinedPortIsLogged has another program join as if it had bound while the owner shared the port, or beside the holder.
func TestProgramThatJoinedPortIsLogged(t *testing.T) {
	for _, tt := range []struct {
		lanes        int
		device, addr string
		source       bool
	}{{1, "", "0.0.0.0", false}, {1, "", "::1", false}, {1, "", "127.0.0.1", true}, {2, "lo", "0.0.0.0", false}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			requireNamespace(t)
			var log bytes.Buffer
			p := open(t, Config{Lanes: tt.lanes, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if len(slices.Collect(iter.Seq[*netlink.Socket](eachBoundSocket))) == 0 {
				t.Skip("needs a kernel with udp_diag (CONFIG_INET_UDP_DIAG)")
			}
			source := openSource(t, p)
			expect.NoError(t, p.OpenGroup(1))
			expect.NoError(t, p.openOwn(probeGroup, 0))
			if log.Len() > 0 {
				t.Fatalf("its own sockets: %s", &log)
			}
			if !tt.source {
				source = 0
			}
			expect.NoError(t, p.shareOwner(source, 1))
			fd, err := bindSharedOn(t, tt.device, tt.addr, p.Source(source))
			expect.NoError(t, err)
			defer func() { expect.NoError(t, unix.Close(fd)) }()
			expect.NoError(t, p.shareOwner(source, 0))
			expect.NoError(t, p.OpenGroup(2))
			for group := 3; group < underlay.MaxGroups; group++ { // group 3 opens the eighth socket, see noteOpened
				expect.NoError(t, p.OpenGroup(group))
				text := log.String()
				if strings.Count(text, "\n") != 1 || !strings.Contains(text, fmt.Sprintf("port=%d address=%s ", p.Source(source), tt.addr)) {
					t.Errorf("got %q", text)
				}
			}
		})
	}
}

// TestKeptSocketsAreNotForeign passes the sockets on while the former port is open, as an upgrade in place does.
func TestKeptSocketsAreNotForeign(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{Lanes: 2})
	openSource(t, p)
	expect.NoError(t, p.OpenGroup(1))
	kept, err := p.Keep()
	expect.NoError(t, err)
	var log bytes.Buffer
	open(t, Config{Lanes: 2, Sockets: kept, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if log.Len() > 0 {
		t.Errorf("got %s", &log)
	}
}

// TestManySourcesListSocketsSeldom counts the lists of the host's sockets while sources, groups and probe sockets are opened.
func TestManySourcesListSocketsSeldom(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{Log: slog.New(slog.DiscardHandler)})
	lists, first := 0, countSockets(p)
	p.listSockets = func(func(*netlink.Socket) bool) { lists++ }
	expectLists := func() {
		t.Helper()
		if opened := countSockets(p) - first; lists != bits.Len(uint(opened)) {
			t.Fatalf("%d sockets were opened: got %d lists, want one after the 1st, 2nd, 4th, 8th and so on", opened, lists)
		}
	}
	for range 40 {
		source := openSource(t, p)
		expectLists()
		expect.NoError(t, p.openOwn(probeGroup, source))
		expectLists()
		if source == 20 {
			opened := countSockets(p) - first
			expect.NoError(t, p.OpenGroup(1))
			if n := countSockets(p) - first; n != opened+21 {
				t.Fatalf("the group has %d sockets, want 21", n-opened)
			}
			expectLists()
		}
	}
}
