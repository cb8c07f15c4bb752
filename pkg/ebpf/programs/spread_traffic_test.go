// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// network is three hosts in a row. left sends packets with partial checksums, middle completes them when it forwards, and
// right verifies them.
type network struct {
	t                   *testing.T
	left, middle, right *netlab.Host
	out, in, last       string // devices: left's egress, and the ingress of middle and right
	listener            *net.UDPConn
}

var networkAddrs = map[string][2]string{
	"v4": {"198.51.100.1:51820", "203.0.113.2:51821"},
	"v6": {"[2001:db8:1::1]:51820", "[2001:db8:2::2]:51821"},
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	loadSpreadFor(t, SpreadOptions{}) // skips without privileges
	lab, err := netlab.New("datapath")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	s := &network{t: t}
	for name, h := range map[string]**netlab.Host{"left": &s.left, "middle": &s.middle, "right": &s.right} {
		*h, err = lab.Host(name)
		expect.NoError(t, err)
	}
	prefixes := func(all ...string) (p []netip.Prefix) {
		for _, s := range all {
			p = append(p, netip.MustParsePrefix(s))
		}
		return p
	}
	first, err := lab.Cable(s.left, s.middle, netlab.CableConfig{
		Queues: 4, MTU: 9000,
		AddrsA: prefixes("198.51.100.1/24", "2001:db8:1::1/64"), AddrsB: prefixes("198.51.100.9/24", "2001:db8:1::9/64"),
	})
	expect.NoError(t, err)
	second, err := lab.Cable(s.middle, s.right, netlab.CableConfig{
		AddrsA: prefixes("203.0.113.9/24", "2001:db8:2::9/64"), AddrsB: prefixes("203.0.113.2/24", "2001:db8:2::2/64"),
	})
	expect.NoError(t, err)
	expect.NoError(t, s.middle.Forward())
	s.out, s.in, s.last = first.DeviceA, first.DeviceB, second.DeviceB
	for via, h := range map[string]*netlab.Host{
		"198.51.100.9": s.left, "2001:db8:1::9": s.left, "203.0.113.9": s.right, "2001:db8:2::9": s.right,
	} {
		neighbour := netip.MustParseAddr(via)
		everywhere, _ := neighbour.Prefix(0)
		expect.NoError(t, h.RouteVia(everywhere, neighbour))
	}
	expect.NoError(t, s.middle.Do(func() error { return withoutChecksumOffload(second.DeviceA) }))
	return s
}

// withT returns the network for a subtest.
func (s *network) withT(t *testing.T) *network {
	c := *s
	c.t = t
	return &c
}

// withoutChecksumOffload makes the kernel compute the checksums of a device's packets (ETHTOOL_STXCSUM).
func withoutChecksumOffload(device string) error {
	const stxcsum = 0x17
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := [2]uint32{stxcsum, 0}
	ifr, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	// The kernel reads the request only during the call.
	type request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	r := request{data: unsafe.Pointer(&value)}
	copy(r.name[:], ifr.Name())
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return fmt.Errorf("turning checksum offload of %s off: %w", device, errno)
	}
	return nil
}

// attach attaches a program to a host's device until the test ends.
func (s *network) attach(h *netlab.Host, device string, p *ebpf.Program, at ebpf.AttachType) {
	s.t.Helper()
	var l link.Link
	err := h.Do(func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		if at == ebpf.AttachXDP {
			l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: dev.Index})
		} else {
			l, err = link.AttachTCX(link.TCXOptions{Program: p, Attach: at, Interface: dev.Index})
		}
		return err
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		s.t.Skipf("needs tcx (Linux 6.6): %v", err)
	}
	expect.NoError(s.t, err)
	s.t.Cleanup(func() { expect.NoError(s.t, l.Close()) })
}

// dial returns a socket of left from the first address to the second.
func (s *network) dial(ends [2]string) *net.UDPConn {
	s.t.Helper()
	var c *net.UDPConn
	expect.NoError(s.t, s.left.Do(func() error {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(endpoint(ends[0])), Control: reusePort}
		conn, err := d.DialContext(s.t.Context(), "udp", ends[1])
		if err == nil {
			c = conn.(*net.UDPConn)
		}
		return err
	}))
	s.t.Cleanup(func() { expect.NoError(s.t, c.Close()) })
	return c
}

// listen opens right's socket on an address.
func (s *network) listen(address string) {
	s.t.Helper()
	expect.NoError(s.t, s.right.Do(func() (err error) {
		s.listener, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(endpoint(address)))
		return err
	}))
	listener := s.listener
	s.t.Cleanup(func() { expect.NoError(s.t, listener.Close()) })
}

// receive returns the next datagram and its source port.
func (s *network) receive() (payload []byte, port uint16) {
	s.t.Helper()
	b := make([]byte, 9000)
	expect.NoError(s.t, s.listener.SetReadDeadline(time.Now().Add(20*time.Second)))
	n, from, err := s.listener.ReadFromUDPAddrPort(b)
	if err != nil {
		s.t.Fatalf("a datagram did not arrive, or with a wrong checksum: %v", err)
	}
	return b[:n], from.Port()
}

// sendTrain sends datagrams of one size in one call (UDP_SEGMENT).
func sendTrain(t *testing.T, c *net.UDPConn, datagrams [][]byte) {
	t.Helper()
	oob := make([]byte, unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(oob[unix.CmsgLen(0):], uint16(len(datagrams[0])))
	_, _, err := c.WriteMsgUDP(bytes.Join(datagrams, nil), oob, nil)
	expect.NoError(t, err)
}

func reusePort(_, _ string, raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); e != nil {
		return e
	}
	return err
}

// exchange sends a train and single messages from the first address to the second. It fails unless right receives all of
// them from the given port.
func (s *network) exchange(ends [2]string, port uint16) {
	s.t.Helper()
	s.listen(ends[1])
	c := s.dial(ends)
	s.checkDelivery(c)
	var sent [][]byte
	for i := range 20 {
		m := message(4, 1000+len(sent)/20)
		m[16] = byte(i)
		sent = append(sent, m)
	}
	sendTrain(s.t, c, sent)
	for i := range 10 {
		m := message(4, 90+i) // even and odd sizes
		_, err := c.Write(m)
		expect.NoError(s.t, err)
		sent = append(sent, m)
	}
	for i, want := range sent {
		got, from := s.receive()
		for len(got) > 0 && got[0] == 1 { // a handshake of checkDelivery
			got, from = s.receive()
		}
		if !bytes.Equal(got, want) || from != port {
			s.t.Errorf("datagram %d: got %d bytes from port %d, want %d from %d", i, len(got), from, len(want), port)
		}
	}
}

// checkDelivery sends handshakes until one arrives. Packets that wait for neighbour discovery may be dropped.
func (s *network) checkDelivery(c *net.UDPConn) {
	s.t.Helper()
	expect.EventuallyNoError(s.t, "a handshake arrives", func() error {
		_, err := c.Write(message(1, 148))
		expect.NoError(s.t, err)
		expect.NoError(s.t, s.listener.SetReadDeadline(time.Now().Add(time.Second)))
		_, _, err = s.listener.ReadFromUDPAddrPort(make([]byte, 9000))
		return err
	})
}

// spreadFrom loads spread for left and attaches it at egress.
func (s *network) spreadFrom(lanes ...uint16) *Spread {
	s.t.Helper()
	spread := loadSpreadFor(s.t, SpreadOptions{L2: true})
	expect.NoError(s.t, spread.SetGap(time.Hour))
	expect.NoError(s.t, spread.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999)}))
	for _, ends := range networkAddrs {
		spread.setOpenPeer(s.t, Peer{Tunnel: 51820, Endpoint: endpoint(ends[1]), Lanes: lanes})
	}
	s.attach(s.left, s.out, spread.Egress(), ebpf.AttachTCXEgress)
	return spread
}

// loadGather loads gather for packets from left.
func loadGather(t *testing.T) *Spread {
	t.Helper()
	gather := loadSpreadFor(t, SpreadOptions{L2: true})
	expect.NoError(t, gather.SetTunnel(Tunnel{Port: 51821}))
	for _, ends := range networkAddrs {
		gather.setOpenPeer(t, Peer{Tunnel: 51821, Endpoint: endpoint(ends[0]), Gather: between(61000, 61999)})
	}
	return gather
}

func TestSpreadKeepsTrainsAndPartialChecksumsValid(t *testing.T) {
	street := newNetwork(t)
	for family, ends := range networkAddrs {
		t.Run(family, func(t *testing.T) {
			s := street.withT(t)
			spread := s.spreadFrom(61234)
			s.exchange(ends, 61234)
			got := counted(t, spread, Counters{})
			if got[EventSpread] != 11 || got[EventFlowNew] != 1 {
				t.Errorf("unexpected counters %v", got)
			}
		})
	}
}

// The program after spread runs too, and sees the inner flow's hash, for fq_codel and the transmit queue.
func TestSpreadContinuesToNextProgramWithHash(t *testing.T) {
	s := newNetwork(t)
	s.spreadFrom(61234)
	hash, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	expect.NoError(t, err)
	defer hash.Close()
	expect.NoError(t, hash.Put(uint32(0), uint32(1)))
	next, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapValue(asm.R2, hash.FD(), 0),
		asm.LoadMem(asm.R3, asm.R1, 68, asm.Word), // __sk_buff.hash
		asm.StoreMem(asm.R2, 0, asm.R3, asm.Word),
		asm.Mov.Imm(asm.R0, -1),
		asm.Return(),
	}})
	expect.NoError(t, err)
	defer next.Close()
	s.attach(s.left, s.out, next, ebpf.AttachTCXEgress)
	ends := networkAddrs["v4"]
	s.listen(ends[1])
	for _, kind := range []byte{4, 1} {
		_, err = s.dial(ends).Write(message(kind, 148))
		expect.NoError(t, err)
		s.receive()
		var seen uint32
		expect.NoError(t, hash.Lookup(uint32(0), &seen))
		if seen == 0 {
			t.Errorf("type %d: got no hash", kind)
		}
	}
}

// At the middle host the checksums are partial, which XDP cannot detect. At the right host they are complete.
func TestGatheredDatagramsArriveIntact(t *testing.T) {
	for family, ends := range networkAddrs {
		s := newNetwork(t)
		s.spreadFrom(61234)
		for name, f := range map[string]func(s *network, gather *Spread){
			"tc in the middle": func(s *network, gather *Spread) {
				s.attach(s.middle, s.in, gather.Ingress(), ebpf.AttachTCXIngress)
			},
			"tc": func(s *network, gather *Spread) {
				s.attach(s.right, s.last, gather.Ingress(), ebpf.AttachTCXIngress)
			},
			"xdp": func(s *network, gather *Spread) {
				s.attach(s.right, s.last, gather.XDP(), ebpf.AttachXDP)
			},
		} {
			t.Run(fmt.Sprint(family, "/", name), func(t *testing.T) {
				s, gather := s.withT(t), loadGather(t)
				f(s, gather)
				s.exchange(ends, 51820)
				if got := counted(t, gather, Counters{}); got[EventGather] != 30 {
					t.Errorf("unexpected counters %v", got)
				}
				if sums := queueSums(t, gather); len(sums) == 0 {
					t.Error("no queue counted")
				}
			})
		}
	}
}

// A packet longer than a page, sent with a header length of 14 bytes, has its IP header in the non-linear part.
func TestNonlinearHeadersAreParsed(t *testing.T) {
	s := newNetwork(t)
	them := "198.51.100.9:51821" // the middle host
	expect.NoError(t, s.middle.Do(func() (err error) {
		s.listener, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(endpoint(them)))
		return err
	}))
	defer s.listener.Close()
	for name, tt := range map[string]struct {
		port, want uint16
		attach     func(s *network) *Spread
		event      Event
	}{
		"spread": {51820, 61234, func(s *network) *Spread {
			spread := s.spreadFrom(61234)
			spread.setOpenPeer(t, Peer{Tunnel: 51820, Endpoint: endpoint(them), Lanes: []uint16{61234}})
			return spread
		}, EventSpread},
		"gather": {61234, 51820, func(s *network) *Spread {
			gather := loadGather(s.t)
			s.attach(s.middle, s.in, gather.Ingress(), ebpf.AttachTCXIngress)
			return gather
		}, EventGather},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.withT(t)
			programs := tt.attach(s)
			want := message(4, 6000)
			s.sendScattered(datagram{src: from(us4, tt.port), dst: them, payload: want}.bytes())
			if got, port := s.receive(); !bytes.Equal(got, want) || port != tt.want {
				t.Errorf("got %d bytes from port %d, want %d from %d", len(got), port, len(want), tt.want)
			}
			if got := counted(t, programs, Counters{}); got[tt.event] != 1 {
				t.Errorf("unexpected counters %v", got)
			}
		})
	}
}

// sendScattered sends a packet from left to the middle host with only its Ethernet header in the linear part.
func (s *network) sendScattered(frame []byte) {
	s.t.Helper()
	binary.BigEndian.PutUint16(frame[14+10:], packet.Checksum(frame[14:34]))
	var to net.HardwareAddr
	expect.NoError(s.t, s.middle.Do(func() error {
		dev, err := net.InterfaceByName(s.in)
		if err == nil {
			to = dev.HardwareAddr
		}
		return err
	}))
	copy(frame, to)
	expect.NoError(s.t, s.left.Do(func() error {
		dev, err := net.InterfaceByName(s.out)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			return err
		}
		header := make([]byte, 10) // struct virtio_net_hdr
		binary.NativeEndian.PutUint16(header[2:], 14)
		to := &unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: binary.NativeEndian.Uint16(frame[12:])}
		return unix.Sendto(fd, append(header, frame...), 0, to)
	}))
}

// Each connected socket has its own hash, like each inner flow.
func TestKernelHashFlowsKeepTheirPort(t *testing.T) {
	s := newNetwork(t)
	lanes := make([]uint16, 16)
	for i := range lanes {
		lanes[i] = 61100 + uint16(i)
	}
	spread := s.spreadFrom(lanes...)
	ends := networkAddrs["v4"]
	s.listen(ends[1])
	var sockets []*net.UDPConn
	for range 16 {
		sockets = append(sockets, s.dial(ends))
	}
	ports := make(map[byte]uint16)
	for round := range 10 {
		for i, c := range sockets {
			m := message(4, 1400)
			m[16] = byte(i)
			_, err := c.Write(m)
			expect.NoError(t, err)
			got, port := s.receive()
			if was := ports[got[16]]; round > 0 && was != port {
				t.Fatalf("flow %d came from port %d, then %d", got[16], was, port)
			}
			ports[got[16]] = port
		}
	}
	distinct := make(map[uint16]bool)
	for _, port := range ports {
		distinct[port] = true
	}
	if len(distinct) < 8 {
		t.Errorf("16 flows on %d ports: %v", len(distinct), ports)
	}
	if got := counted(t, spread, Counters{}); got[EventFlowNew] > 16 || got[EventFlowReassigned] != 0 {
		t.Errorf("unexpected counters %v", got)
	}
}

// The receive queue of a veth is its peer's transmit queue, which the kernel selects by the hash of the new ports.
func TestQueueCountsReportReceiveQueues(t *testing.T) {
	s, gather := newNetwork(t), loadGather(t)
	s.spreadFrom(61001, 61002, 61003, 61004, 61005, 61006, 61007, 61008)
	s.attach(s.middle, s.in, gather.Ingress(), ebpf.AttachTCXIngress)
	ends := networkAddrs["v4"]
	s.listen(ends[1])
	for range 64 {
		_, err := s.dial(ends).Write(message(4, 1000))
		expect.NoError(t, err)
		s.receive()
	}
	sum := uint64(0)
	sums := queueSums(t, gather)
	for _, n := range sums {
		sum += n
	}
	if sum != 64 || len(sums) > 4 {
		t.Errorf("datagrams by queue: %v", sums)
	}
}
