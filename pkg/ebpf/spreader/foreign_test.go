// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

func (s *side) count(e programs.Event) uint64 {
	s.r.Helper()
	return s.status().Counters[e].Count
}

// TestPodsDatagramsChangeNothing has a container, to which the host forwards, with the tunnel's ports.
func TestPodsDatagramsChangeNothing(t *testing.T) {
	r := newRig(t)
	pod, err := r.lab.Host("pod")
	expect.NoError(t, err)
	prefix := netip.MustParsePrefix
	_, err = r.lab.Cable(pod, r.here.lab, netlab.CableConfig{
		AddrsA: []netip.Prefix{prefix("10.244.0.2/24")}, AddrsB: []netip.Prefix{prefix("10.244.0.1/24")},
	})
	expect.NoError(t, err)
	expect.NoError(t, errors.Join(r.here.lab.Forward(), pod.RouteVia(prefix("0.0.0.0/0"), netip.MustParseAddr("10.244.0.1")),
		r.there.lab.RouteVia(prefix("10.244.0.0/24"), hereAddr)))
	r.here.attach(r.here.config())
	senders, receiver := r.senders(), r.there.socket(port)
	r.prove(senders, receiver)
	spread, none, fragments := r.here.count(programs.EventSpread), r.here.count(programs.EventNoPeer), r.here.count(programs.EventEgressFragment)
	var c *net.UDPConn
	expect.NoError(t, pod.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 244, 0, 2), Port: port})
		return err
	}))
	defer c.Close()
	there := netip.AddrPortFrom(thereAddr, port)
	for n := range 200 {
		_, err := c.WriteToUDPAddrPort(message(0, n), there)
		expect.NoError(t, err)
		if a := r.receive(receiver); a.from.String() != "10.244.0.2:51820" {
			t.Fatalf("message %d came from %v", n, a.from)
		}
	}
	_, err = c.WriteToUDPAddrPort(make([]byte, 3000), there) // leaves in fragments
	expect.NoError(t, err)
	expect.NoError(t, receiver.SetReadDeadline(time.Now().Add(20*time.Second)))
	if n, _, err := receiver.ReadFromUDPAddrPort(make([]byte, 4000)); n != 3000 || err != nil {
		t.Fatalf("got %d bytes, error %v, want 3000", n, err)
	}
	if s, n, f := r.here.count(programs.EventSpread), r.here.count(programs.EventNoPeer), r.here.count(programs.EventEgressFragment); s != spread || n != none || f != fragments {
		t.Errorf("the pod's datagrams were counted: %d, %d, %d, before %d, %d, %d", s, n, f, spread, none, fragments)
	}
	for flow, ports := range r.sources(senders, receiver) {
		if ports[port] || len(ports) != 1 {
			t.Errorf("flow %d came from %v, want one lane port", flow, ports)
		}
	}
}

// TestRouterFragmentsKeepEndpoint has a router that fragments large messages. The receiver sees one endpoint.
func TestRouterFragmentsKeepEndpoint(t *testing.T) {
	for _, gather := range []Gather{GatherTC, GatherXDP} {
		t.Run(string(gather), func(t *testing.T) {
			e := newProbeRig(t, gather)
			e.awaitFlows("without large messages", isSpread)
			expect.NoError(t, e.router.Do(func() error {
				l, err := netlink.LinkByName(e.outward)
				if err != nil {
					return err
				}
				return netlink.LinkSetMTU(l, 1400)
			}))
			for _, c := range e.senders {
				withoutDF(t, c)
			}
			large := append(message(0, 0), make([]byte, 1450-96)...)
			buf := make([]byte, 4000)
			for n := range 200 {
				flow := n % flows
				_, err := e.senders[flow].WriteToUDPAddrPort(large[:96+n%2*(len(large)-96)], netip.AddrPortFrom(e.there.addr, port))
				expect.NoError(t, err)
				expect.NoError(t, e.receiver.SetReadDeadline(time.Now().Add(20*time.Second)))
				size, from, err := e.receiver.ReadFromUDPAddrPort(buf)
				if err != nil || size != 96+n%2*(len(large)-96) || from != netip.AddrPortFrom(hereAddr, port) {
					t.Fatalf("message %d: got %d bytes from %v, error %v", n, size, from, err)
				}
			}
		})
	}
}

// TestForgedICMPErrorsChangeNoSpreading has a host off the path, which knows nothing but both endpoints. The kernel would believe the path MTU in its
// errors, and large messages would leave in fragments.
func TestForgedICMPErrorsChangeNoSpreading(t *testing.T) {
	e := newProbeRig(t, GatherAuto)
	stranger, err := e.lab.Host("stranger")
	expect.NoError(t, err)
	prefix, gateway := netip.MustParsePrefix, netip.MustParseAddr("203.0.113.254")
	_, err = e.lab.Cable(stranger, e.router, netlab.CableConfig{AddrsA: []netip.Prefix{prefix("203.0.113.3/24")}, AddrsB: []netip.Prefix{netip.PrefixFrom(gateway, 24)}})
	expect.NoError(t, errors.Join(err, stranger.RouteVia(prefix("0.0.0.0/0"), gateway)))
	for _, c := range e.senders {
		withoutDF(t, c)
	}
	e.here.socket(port) // as that of WireGuard it has no peer's address, so the kernel finds it for all that the errors quote
	e.awaitFlows("before the errors", isSpread)
	if small, large := e.spreadOf(100, 96), e.spreadOf(100, 1400); small != 100 || large != 100 {
		t.Fatalf("before the errors %d of 100 small messages and %d of 100 large ones were spread", small, large)
	}
	lane := e.peer().Lanes[0].Port
	expect.NoError(t, stranger.Do(func() error {
		c, err := net.Dial("ip4:icmp", hereAddr.String())
		if err != nil {
			return err
		}
		defer c.Close()
		for _, from := range []uint16{port, lane} {
			quoted := netip.AddrPortFrom(hereAddr, from)
			for _, kind := range [][2]byte{{3, 4}, {3, 1}, {11, 0}} { // fragmentation needed, host unreachable, time exceeded
				if _, err := c.Write(icmpError(kind, 1200, quoted, netip.AddrPortFrom(e.there.addr, port))); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	expect.Eventually(t, "both claims of a path MTU are dropped", func() bool { return e.here.count(programs.EventFragmentationNeeded) == 2 })
	if small, large := e.spreadOf(200, 96), e.spreadOf(100, 1400); small != 200 || large != 100 {
		t.Errorf("after them %d of 200 small messages were spread, and %d of 100 large ones, want all", small, large)
	}
	if p := e.peer(); !isSpread(p) {
		t.Errorf("got status %+v", p)
	}
}

// spreadOf sends messages of a size over all flows, and returns how many were spread. All must arrive from the listen port.
func (e *probeRig) spreadOf(n, size int) uint64 {
	e.Helper()
	before, buf := e.here.count(programs.EventSpread), make([]byte, 4000)
	for i := range n {
		m := append(message(i%flows, i), make([]byte, size-96)...)
		_, err := e.senders[i%flows].WriteToUDPAddrPort(m, netip.AddrPortFrom(e.there.addr, port))
		expect.NoError(e, err)
		expect.NoError(e, e.receiver.SetReadDeadline(time.Now().Add(20*time.Second)))
		if got, from, err := e.receiver.ReadFromUDPAddrPort(buf); got != size || err != nil || from != netip.AddrPortFrom(hereAddr, port) {
			e.Fatalf("message %d: got %d bytes from %v, error %v", i, got, from, err)
		}
	}
	return e.here.count(programs.EventSpread) - before
}

// icmpError returns an ICMP error of a type and code about a datagram of 1,400 bytes. mtu matters to one type only (RFC 1191).
func icmpError(kind [2]byte, mtu uint16, from, to netip.AddrPort) []byte {
	ip := append([]byte{0x45, 0, 0x05, 0x94, 0, 1, 0, 0, 60, 17, 0, 0}, from.Addr().AsSlice()...)
	ip = append(ip, to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip))
	for _, v := range []uint16{from.Port(), to.Port(), 1408, 0} {
		ip = binary.BigEndian.AppendUint16(ip, v)
	}
	m := append(binary.BigEndian.AppendUint16([]byte{kind[0], kind[1], 0, 0, 0, 0}, mtu), ip...)
	binary.BigEndian.PutUint16(m[2:], packet.Checksum(m))
	return m
}

// withoutDF makes routers fragment a socket's datagrams, as those of the kernel's WireGuard.
func withoutDF(t *testing.T, c *net.UDPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	expect.NoError(t, err)
	ctlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	})
	expect.NoError(t, errors.Join(err, ctlErr))
}
