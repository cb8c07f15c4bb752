// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestProbesOfMacvlanMessagesHaveHops has a container on a macvlan device with CAP_NET_RAW. It sends messages with the host's address that the
// next router drops. Such a message may begin a round. Then the probe is made of it.
func TestProbesOfMacvlanMessagesHaveHops(t *testing.T) {
	e := newProbeRig(t, GatherAuto)
	send := e.macvlan()
	expect.Eventually(t, "the peer answers the probes", func() bool {
		send(1)
		return e.peer().ProbeAnswered
	})
	for _, c := range e.senders {
		expect.NoError(t, c.Close())
	}
	e.senders = nil
	if len(e.arrivals()) > 0 {
		t.Error("a message of the container arrived, want all dropped by the router")
	}
}

// TestMasqueradedContainerWithTunnelPortIsReported has a container that sends from the tunnel's port first, so conntrack gives the host's port to its
// flow, and another one to WireGuard's messages. The rules of the reported problem end that.
func TestMasqueradedContainerWithTunnelPortIsReported(t *testing.T) {
	r := newRig(t)
	pod, err := r.lab.Host("pod")
	expect.NoError(t, err)
	prefix := netip.MustParsePrefix
	_, err = r.lab.Cable(pod, r.here.lab, netlab.CableConfig{AddrsA: []netip.Prefix{prefix("10.244.0.2/24")}, AddrsB: []netip.Prefix{prefix("10.244.0.1/24")}})
	expect.NoError(t, err)
	nft := func(rules string) {
		cmd := r.here.lab.Command(t.Context(), "nft", rules)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("nft %s: %v: %s", rules, err, out)
		}
	}
	nft("add table ip pods; add chain ip pods post { type nat hook postrouting priority srcnat; }; add rule ip pods post ip saddr 10.244.0.0/24 masquerade")
	expect.NoError(t, errors.Join(r.here.lab.Forward(), pod.RouteVia(prefix("0.0.0.0/0"), netip.MustParseAddr("10.244.0.1"))))
	r.here.watch(50 * time.Millisecond)
	expect.Eventually(t, "it is attached", func() bool { return r.here.status() != nil })
	to := netip.AddrPortFrom(thereAddr, port)
	receiver := r.there.socket(port)
	var c *net.UDPConn
	expect.NoError(t, pod.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 244, 0, 2), Port: port})
		return err
	}))
	defer c.Close()
	_, err = c.WriteToUDPAddrPort(message(99, 0), to)
	expect.NoError(t, err)
	if a := r.receive(receiver); a.from != netip.AddrPortFrom(hereAddr, port) {
		t.Fatalf("the container's message came from %v, want the tunnel's port", a.from)
	}
	if n := r.here.count(programs.EventUnproven); n != 0 {
		t.Errorf("counted %d messages of the container", n)
	}
	sender, counting := r.here.socket(port), wg(to.String())
	send := func() uint16 {
		_, err := sender.WriteToUDPAddrPort(message(1, 0), to)
		expect.NoError(t, err)
		counting.Peers[0].SentBytes += 1 << 20
		r.here.finder.set(counting)
		return r.receive(receiver).from.Port()
	}
	reported := func() bool { return strings.Contains(problems(r.here.status()), "conntrack") }
	expect.Eventually(t, "the problem is reported", func() bool {
		if from := send(); from == port {
			t.Fatal("WireGuard's message left from its port")
		}
		return reported()
	})
	_, rules, _ := strings.Cut(problems(r.here.status()), "nft '")
	rules, _, _ = strings.Cut(rules, "'")
	nft(rules)
	expect.Eventually(t, "the problem has ended", func() bool { return send() == port && !reported() })
}

// macvlan adds a container on a macvlan device of here's. It returns a function that sends a message of the host's to there.
func (e *probeRig) macvlan() (send func(ttl byte)) {
	e.Helper()
	pod, err := e.lab.Host("pod")
	expect.NoError(e, err)
	const name = "macvlan0"
	e.here.do(func() error {
		parent, err := netlink.LinkByName(e.here.device)
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: parent.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE})
	})
	expect.NoError(e, e.here.lab.Move(name, pod))
	sendFrame := e.sendsFrames(pod, name, e.router, e.inward)
	return func(ttl byte) {
		udp := binary.BigEndian.AppendUint16(nil, port)
		udp = binary.BigEndian.AppendUint16(udp, port)
		udp = binary.BigEndian.AppendUint16(udp, 8+96)
		udp = append(append(udp, 0, 0), message(0, 0)...)
		ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, ttl, unix.IPPROTO_UDP, 0, 0}
		ip = slices.Concat(ip, hereAddr.AsSlice(), e.there.addr.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		sendFrame([]byte{8, 0}, append(ip, udp...))
	}
}

// sendsFrames sets a device of a host up. It returns a function that sends frames through it to a device of another host, with an EtherType and what
// follows. With tags the EtherType is longer.
func (e *probeRig) sendsFrames(from *netlab.Host, device string, host *netlab.Host, toDevice string) (send func(ethertype, payload []byte)) {
	e.Helper()
	var hardware net.HardwareAddr
	expect.NoError(e, host.Do(func() error {
		i, err := net.InterfaceByName(toDevice)
		if err == nil {
			hardware = i.HardwareAddr
		}
		return err
	}))
	var fd int
	to := &unix.SockaddrLinklayer{}
	expect.NoError(e, from.Do(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		to.Ifindex = l.Attrs().Index
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	e.Cleanup(func() { unix.Close(fd) })
	return func(ethertype, payload []byte) {
		expect.NoError(e, unix.Sendto(fd, slices.Concat(hardware, make([]byte, 6), ethertype, payload), 0, to))
	}
}

// checksum returns the Internet checksum of an even number of bytes.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum&0xffff + sum>>16
	return ^uint16(sum&0xffff + sum>>16)
}
