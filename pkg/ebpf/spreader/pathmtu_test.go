// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestPathMTUOverIPv6IsLearned has a router with a smaller MTU behind it. Its Packet Too Big quotes a lane port, from which no
// socket sent.
func TestPathMTUOverIPv6IsLearned(t *testing.T) {
	for _, gather := range []Gather{GatherTC, GatherXDP} {
		t.Run(string(gather), func(t *testing.T) {
			lab, hosts := netlabtest.Hosts(t, "pmtu", "here", "router", "there")
			here, router, there := hosts[0], hosts[1], hosts[2]
			prefix := netip.MustParsePrefix
			near, err := lab.Cable(here, router, netlab.CableConfig{
				MTU: 1500, AddrsA: []netip.Prefix{prefix("2001:db8:a::1/64")}, AddrsB: []netip.Prefix{prefix("2001:db8:a::2/64")},
			})
			expect.NoError(t, err)
			far, err := lab.Cable(router, there, netlab.CableConfig{
				MTU: 1400, AddrsA: []netip.Prefix{prefix("2001:db8:b::2/64")}, AddrsB: []netip.Prefix{prefix("2001:db8:b::1/64")},
			})
			expect.NoError(t, err)
			expect.NoError(t, errors.Join(router.Forward(), here.RouteVia(prefix("::/0"), netip.MustParseAddr("2001:db8:a::2")),
				there.RouteVia(prefix("::/0"), netip.MustParseAddr("2001:db8:b::2"))))

			to := netip.MustParseAddrPort("[2001:db8:b::1]:51820")
			sender := listenAsWireGuard(t, here, netip.MustParseAddrPort("[2001:db8:a::1]:51820"))
			receiver := listenAsWireGuard(t, there, to)
			finder := &fakeFinder{}
			finder.set(wg(to.String()))
			host := &Host{FS: mountBPFFS(t), Tunnels: finder}
			attach := func(h *netlab.Host, host *Host, cfg Config) {
				expect.NoError(t, h.Do(func() error {
					_, err := host.Attach(t.Context(), cfg)
					return err
				}))
			}
			attach(here, host, Config{Device: near.DeviceA, Port: port, Gather: gather, Lanes: 1})
			theirs := wg("[2001:db8:a::1]:51820")
			theirs.Peers[0].Secrets = secretsWith(hereAddr)
			finderThere := &fakeFinder{}
			finderThere.set(theirs)
			attach(there, &Host{FS: host.FS, Tunnels: finderThere}, Config{Device: far.DeviceB, Port: port})

			large := append(message(1, 1), make([]byte, 1440-96)...)
			buf := make([]byte, 2048)
			expect.Eventually(t, "the source port is proved", func() (ready bool) {
				for range 64 {
					_, err := sender.WriteToUDPAddrPort(message(1, 1), to)
					expect.NoError(t, err)
				}
				expect.NoError(t, here.Do(func() error {
					st, err := host.Status(t.Context(), near.DeviceA)
					ready = err == nil && st[0].Tunnels[0].Peers[0].Ready
					return err
				}))
				return ready
			})
			expect.Eventually(t, "a message above the path MTU arrives", func() bool {
				_, err := sender.WriteToUDPAddrPort(large, to)
				expect.NoError(t, err)
				expect.NoError(t, receiver.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
				n, _, err := receiver.ReadFromUDPAddrPort(buf)
				for err == nil && n == 96 { // of those that proved the source port
					n, _, err = receiver.ReadFromUDPAddrPort(buf)
				}
				return err == nil && n == len(large)
			})
			expect.NoError(t, here.Do(func() error {
				st, err := host.Status(t.Context(), near.DeviceA)
				if err != nil || len(st) != 1 || !slices.ContainsFunc(st[0].Counters, func(c Counter) bool { return c.Name == "packet_too_big" && c.Count > 0 }) {
					t.Errorf("got status %+v, error %v, want packet_too_big counted", st, err)
				}
				return errors.Join(err, host.Detach(t.Context(), 0))
			}))
		})
	}
}

// TestForgedFragmentationNeededChangesNothing has a router that claims a smaller path MTU, about packets of which the kernel checks nothing secret: a
// message of the tunnel, one from any address, one of another service's socket, an Echo Reply (icmp_err in net/ipv4/icmp.c), and errors in fragments: one
// that ends before the quote, and one in which the second fragment replaces the end of the quoted address (ip_frag_queue in net/ipv4/ip_fragment.c).
// Two come with tags of VLAN 0.
func TestForgedFragmentationNeededChangesNothing(t *testing.T) {
	const other = 5353
	udp := func(from uint16) []byte {
		return []byte{byte(from >> 8), byte(from), port >> 8, port & 0xff, 5, 0, 0, 0}
	}
	for _, gather := range []Gather{GatherTC, GatherXDP} {
		t.Run(string(gather), func(t *testing.T) {
			e := newProbeRig(t, gather)
			e.awaitFlows("before", isSpread)
			e.here.socket(port) // without a peer, as WireGuard's: the error finds it
			e.here.socket(other)
			e.sendFragmentationNeeded(hereAddr, packet.UDP, udp(port), 0)
			e.sendFragmentationNeeded(netip.IPv4Unspecified(), packet.UDP, udp(port), 0)
			e.sendFragmentationNeeded(hereAddr, packet.UDP, udp(other), 0)
			e.sendFragmentationNeeded(hereAddr, packet.ICMP, make([]byte, 8), 0)
			e.sendFragmentationNeeded(hereAddr, packet.UDP, udp(port), 8)
			e.sendFragmentationNeeded(hereAddr, packet.UDP, udp(port), 28)
			e.sendTagged(hereAddr, packet.UDP, udp(port), 2)
			e.sendTagged(hereAddr, packet.UDP, udp(port), 5)
			expect.Eventually(t, "all are dropped", func() bool {
				return e.here.count(programs.EventFragmentationNeeded) == 7 && e.here.count(programs.EventTooManyTags) == 1
			})
			e.checkNoFragments()
		})
	}
}

// checkNoFragments sends messages that are no larger than the path MTU.
func (e *probeRig) checkNoFragments() {
	e.Helper()
	large := append(message(1, 1), make([]byte, 1400-96)...)
	for _, c := range e.senders {
		withoutDF(e.T, c)
		_, err := c.WriteToUDPAddrPort(large, netip.AddrPortFrom(e.there.addr, port))
		expect.NoError(e, err)
	}
	if n := e.here.count(programs.EventEgressFragment); n != 0 {
		e.Errorf("%d of %d large messages left in fragments, want none", n, len(e.senders))
	}
}

// TestForgedErrorsFromPeersAndContainersChangeNothing: a peer sends an error through the tunnel, and a container by its veth, about a message to another
// peer. The devices come after the programs. A container's device has the filter only by tcx.
func TestForgedErrorsFromPeersAndContainersChangeNothing(t *testing.T) {
	for _, kind := range []hook.Kind{hook.Best, hook.Clsact} {
		t.Run(kind.String(), func(t *testing.T) {
			e := newProbeRig(t, GatherAuto)
			e.awaitFlows("before", isSpread)
			e.here.socket(port)
			e.here.host.kind = kind
			_, _, stop := e.here.watch(50 * time.Millisecond)
			filtered := func() FilterStatus { return e.here.status().Filter }
			tunnel := e.here.tun("wg0")
			pod, err := e.lab.Host("pod")
			expect.NoError(t, err)
			veth, err := e.lab.Cable(pod, e.here.lab, netlab.CableConfig{})
			expect.NoError(t, err)
			want := []string{"wg0"}
			foreign := kind == hook.Best && hook.HasTCX()
			if foreign {
				want = []string{veth.DeviceB, "wg0"}
			}
			expect.Eventually(t, "the devices have the filter", func() bool { return slices.Equal(filtered().Devices, want) })
			ip := e.errorPacket(hereAddr, packet.UDP, []byte{port >> 8, port & 0xff, port >> 8, port & 0xff, 5, 0, 0, 0})
			_, err = unix.Write(tunnel, ip)
			expect.NoError(t, err)
			if foreign {
				e.sendsFrames(pod, veth.DeviceA, e.here.lab, veth.DeviceB)([]byte{8, 0}, ip)
			}
			expect.Eventually(t, "all are dropped", func() bool { return filtered().Dropped == uint64(len(want)) })
			e.checkNoFragments()
			expect.NoError(t, e.here.lab.RemoveLink(veth.DeviceB))
			expect.Eventually(t, "the gone device is forgotten", func() bool { return slices.Equal(filtered().Devices, []string{"wg0"}) })
			if p := problems(e.here.status()); p != "" {
				t.Errorf("got problems %q, want none", p)
			}
			stop()
			e.there.detach(0)
			e.here.detach(0)
			e.here.clean()
		})
	}
}

// tun adds a TUN device, as a tunnel in user space has. It returns the descriptor, to which the tunnel writes what its peers send.
func (s *side) tun(name string) (fd int) {
	s.r.Helper()
	s.do(func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	})
	s.r.Cleanup(func() { unix.Close(fd) })
	expect.NoError(s.r, s.lab.SetUp(name, 1420, netip.MustParsePrefix("10.9.0.1/24")))
	return fd
}

// sendFragmentationNeeded sends the ICMP error of the router about a packet to there: whole, or with a number of bytes in the first of two fragments. The
// kernel ignores the last bytes of a first fragment that are no multiple of 8. They are sent wrong, and again in the second one.
func (e *probeRig) sendFragmentationNeeded(from netip.Addr, protocol packet.Protocol, transport []byte, first int) {
	e.Helper()
	icmp := e.fragmentationNeeded(from, protocol, transport)
	send := func(fragment uint16, payload []byte) error { // the kernel sets length, source and checksum (raw(7))
		return sendRaw(append(icmpHeader(fragment), payload...))
	}
	expect.NoError(e, e.router.Do(func() error {
		if at := first / 8; first > 0 {
			return errors.Join(send(0x2000, append(slices.Clone(icmp[:8*at]), make([]byte, first%8)...)), send(uint16(at), icmp[8*at:]))
		}
		return send(0, icmp)
	}))
}

// sendTagged sends the error with a number of tags of VLAN 0 on the link of the router. The kernel removes all.
func (e *probeRig) sendTagged(from netip.Addr, protocol packet.Protocol, transport []byte, tags int) {
	e.Helper()
	send := e.sendsFrames(e.router, e.inward, e.here.lab, e.here.device)
	send(append(bytes.Repeat([]byte{0x81, 0, 0, 0}, tags), 8, 0), e.errorPacket(from, protocol, transport))
}

// errorPacket returns the whole IPv4 packet of an ICMP error about a packet to there.
func (e *probeRig) errorPacket(from netip.Addr, protocol packet.Protocol, transport []byte) []byte {
	icmp := e.fragmentationNeeded(from, protocol, transport)
	ip := icmpHeader(0)
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(icmp)))
	copy(ip[12:], e.there.addr.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return append(ip, icmp...)
}

// fragmentationNeeded returns an ICMP error about a packet to there.
func (e *probeRig) fragmentationNeeded(from netip.Addr, protocol packet.Protocol, transport []byte) []byte {
	quoted := append([]byte{0x45, 0, 5, 0x14, 0, 0, 0, 0, 60, byte(protocol), 0, 0}, slices.Concat(from.AsSlice(), e.there.addr.AsSlice(), transport)...)
	icmp := append([]byte{3, 4, 0, 0, 0, 0, 1200 >> 8, 1200 & 0xff}, quoted...)
	binary.BigEndian.PutUint16(icmp[2:], checksum(icmp))
	return icmp
}

// icmpHeader returns the IPv4 header of an ICMP message to hereAddr, or of a fragment of one, without length, source and checksum.
func icmpHeader(fragment uint16) []byte {
	return append([]byte{0x45, 0, 0, 0, 0, 77, byte(fragment >> 8), byte(fragment), 60, byte(packet.ICMP), 0, 0, 0, 0, 0, 0}, hereAddr.AsSlice()...)
}

// sendRaw sends an IPv4 packet to hereAddr.
func sendRaw(ip []byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, ip, 0, &unix.SockaddrInet4{Addr: hereAddr.As4()})
}

// listenAsWireGuard opens a socket that sends messages of any size, and fragments those above the known path MTU, as the kernel's
// WireGuard does (ignore_df).
func listenAsWireGuard(t *testing.T, h *netlab.Host, at netip.AddrPort) (c *net.UDPConn) {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		ctlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT)
		})
		return errors.Join(err, ctlErr)
	}}
	expect.NoError(t, h.Do(func() error {
		p, err := config.ListenPacket(context.Background(), "udp6", at.String())
		if err == nil {
			c = p.(*net.UDPConn)
		}
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// mountBPFFS mounts a BPF file system until the test ends.
func mountBPFFS(t *testing.T) (path string) {
	t.Helper()
	path = t.TempDir()
	if err := unix.Mount("bpf", path, "bpf", 0, ""); err != nil {
		t.Skipf("needs root and a kernel with a BPF file system: %v", err)
	}
	t.Cleanup(func() { expect.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return path
}
