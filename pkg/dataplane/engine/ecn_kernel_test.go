// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// rawPeer is a plain UDP socket that knows the peer's end of a rig's session; it shares no code with pkg/netio/underlay/udp.
type rawPeer struct {
	t    *testing.T
	conn *net.UDPConn
	ipv6 bool
}

func newRawPeer(t *testing.T, ipv6 bool) *rawPeer {
	t.Helper()
	network, addr := "udp4", net.IPv4(127, 0, 0, 1)
	if ipv6 {
		network, addr = "udp6", net.IPv6loopback
	}
	conn, err := net.ListenUDP(network, &net.UDPAddr{IP: addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s := &rawPeer{t: t, conn: conn, ipv6: ipv6}
	s.set(unix.IP_RECVTOS, unix.IPV6_RECVTCLASS, 1)
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return s
}

// set sets the socket option of the socket's family.
func (p *rawPeer) set(v4, v6, value int) {
	p.t.Helper()
	raw, err := p.conn.SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	level, option := unix.SOL_IP, v4
	if p.ipv6 {
		level, option = unix.SOL_IPV6, v6
	}
	control := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) })
	if control != nil || err != nil {
		p.t.Fatal(control, err)
	}
}

// receive returns one datagram and the whole TOS byte or traffic class it came with.
func (p *rawPeer) receive() (datagram []byte, tos byte) {
	p.t.Helper()
	datagram, oob := make([]byte, 65535), make([]byte, 128)
	n, oobn, _, _, err := p.conn.ReadMsgUDP(datagram, oob)
	if err != nil {
		p.t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		p.t.Fatalf("%d control messages, %v", len(messages), err)
	}
	return datagram[:n], messages[0].Data[0]
}

func (p *rawPeer) send(datagram []byte, to uint16, tos packet.ECN) {
	p.t.Helper()
	p.set(unix.IP_TOS, unix.IPV6_TCLASS, int(tos))
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.endpoint().Dst.Addr(), to))
	if _, err := p.conn.WriteTo(datagram, at); err != nil {
		p.t.Fatal(err)
	}
}

func (p *rawPeer) endpoint() underlay.Endpoint {
	return underlay.Endpoint{Dst: p.conn.LocalAddr().(*net.UDPAddr).AddrPort()}
}

// newRigWithRawPeer gives an engine a real port in a network namespace of its own, and a peer on a plain socket there.
func newRigWithRawPeer(t *testing.T, ipv6 bool) (*engineRig, underlay.Port, *rawPeer) {
	t.Helper()
	namespace.Enter(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	port, err := udp.Open(udp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if ipv6 && !port.Features().IPv6 {
		_ = port.Close()
		t.Skip("needs IPv6")
	}
	r, s := newEngineRig(t), newRawPeer(t, ipv6)
	at := s.endpoint()
	r.Peer.Endpoint.Store(&at)
	r.engine.Start()
	expect.NoError(t, r.engine.Attach(port))
	t.Cleanup(func() {
		expect.NoError(t, r.engine.Detach())
		expect.NoError(t, r.TUN.Close())
		r.engine.Wait()
	})
	return r, port, s
}

func eachFamily(t *testing.T, test func(t *testing.T, ipv6 bool)) {
	for name, ipv6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) { test(t, ipv6) })
	}
}

func TestKernelSendsInnerECNInOuterHeader(t *testing.T) {
	eachFamily(t, func(t *testing.T, ipv6 bool) {
		r, port, s := newRigWithRawPeer(t, ipv6)
		for _, c := range []struct{ inner, outer packet.ECN }{{2, 2}, {0, 0}, {3, 2}, {1, 1}, {0, 0}} {
			// DSCP EF and the flow label inside must not show outside.
			element := flow.WithVnetHeader(lanetest.Out4.UDP([]byte("one")))
			element[10+1] = 0xb8
			expect.NoError(t, r.TUN.Inject(0, lanetest.MarkedElement(element, c.inner)))
			expect.NoError(t, r.TUN.Inject(0, lanetest.MarkedElement(lanetest.Out6.TCPTrain(0, 100, make([]byte, 500)), c.inner)))
			for range 6 {
				msg, tos := s.receive()
				if tos != byte(c.outer) {
					t.Errorf("inner %d: a message of %d bytes left with TOS %#x, want %d", c.inner, len(msg), tos, c.outer)
				}
			}
		}
		at := s.endpoint()
		if err := port.SendTo(&at, make([]byte, 148)); err != nil {
			t.Fatal(err)
		}
		if _, tos := s.receive(); tos != 0x88 {
			t.Errorf("a handshake left with TOS %#x, want AF41 without ECN", tos)
		}
	})
}

func TestKernelCongestionMarkReachesInnerPacket(t *testing.T) {
	eachFamily(t, func(t *testing.T, ipv6 bool) {
		r, port, s := newRigWithRawPeer(t, ipv6)
		for _, c := range []struct{ outer, inner, want packet.ECN }{
			{3, 2, 3}, {0, 0, 0}, {3, 1, 3}, {3, 0, 0}, {2, 2, 2}, {0, 2, 2}, {0, 3, 3},
		} {
			for _, ends := range []flow.Ends{lanetest.In4, lanetest.In6} {
				run, _ := r.Seal(lanetest.Marked(ends.UDP([]byte("ping")), c.inner))
				s.send(run, port.LocalPort(), c.outer)
				got, err := r.TUN.Receive(t.Context(), 0)
				if err != nil {
					t.Fatal(err)
				}
				want := lanetest.Marked(ends.UDP([]byte("ping")), c.want)
				lanetest.SamePackets(t, lanetest.PacketsOf(t, got), [][]byte{want})
			}
		}
	})
}
