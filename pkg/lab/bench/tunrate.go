// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// edgePart is the share of a stretch that one measurement of an edge takes, and edgeLimit the longest wait for
// packets that should be there.
const (
	edgePart  = 4
	edgeLimit = 10 * time.Second
)

// tun measures a real TUN. It writes packets that the host then drops, reads packets that the host
// was made to send, and carries TCP from one TUN into another.
func (s *suite) tun(ctx context.Context) error {
	for _, sh := range []shape{trainShape(), smallShape()} {
		unit, rate := "Gbit/s", gigabits
		if sh == smallShape() {
			unit, rate = "kpps", kilopackets
		}
		figure := func(verb string) Figure {
			return Figure{
				Stage: StageTUN, Name: verb + "_" + sh.name, Unit: unit,
				What: fmt.Sprintf("%s %s, one core", verb, sh.what),
			}
		}
		err := s.take(ctx, []Figure{figure("write"), figure("read")}, func(ctx context.Context, f []Figure) error {
			write, read, err := s.tunRates(ctx, sh, s.cfg.Stretch/edgePart)
			f[0].Value, f[1].Value = rate(write, sh), rate(read, sh)
			return err
		})
		if err != nil {
			return err
		}
	}
	return s.inLab(ctx, StageTUN, testbed.Config{NullTunnel: true}, func(lab *labSource) error {
		return s.tcp(ctx, lab, Figure{
			Stage: StageTUN, Streams: nullTunnelStreams, What: "TCP through two TUNs, passed on untouched, 4 streams",
		})
	})
}

// nullTunnelStreams is the number of streams with which the raw cable reaches its highest throughput.
const nullTunnelStreams = 4

// gigabits and kilopackets put packets per second into units.
func gigabits(perSecond float64, sh shape) float64 { return perSecond * float64(sh.size) * 8 / 1e9 }

func kilopackets(perSecond float64, _ shape) float64 { return perSecond / 1e3 }

// tunRates are the packets per second that one core writes and reads.
func (s *suite) tunRates(ctx context.Context, sh shape, stretch time.Duration) (write, read float64, err error) {
	lab, err := netlab.New(s.cfg.Prefix)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	r, err := newTUNRig(lab, sh)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	ctx, cancel := context.WithTimeoutCause(ctx, stretch+edgeLimit, errors.New("packets sent did not arrive at the TUN"))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = r.dev.Close() })()
	if err := repeat(ctx, stretch/2, r.write); err != nil {
		return 0, 0, err
	}
	err = repeat(ctx, stretch/2, r.read)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return r.writes.perSecond(sh.packets), r.reads.perSecond(sh.packets), err
}

// tunRig is a TUN in a host, and a packet socket that makes the host send through it.
type tunRig struct {
	dev      tun.Device
	queue    tun.Queue
	inject   int // packet socket
	elements int // of a batch
	element  []byte
	parts    [][]byte
	bufs     [][]byte
	sizes    []int

	writes, reads meter
}

const tunReadBatch = 64

func newTUNRig(lab *netlab.Lab, sh shape) (*tunRig, error) {
	h, err := lab.Host("tun")
	if err != nil {
		return nil, err
	}
	r := &tunRig{inject: -1, elements: 1, sizes: make([]int, tunReadBatch)}
	if r.element = trainElement(sh); sh == smallShape() {
		r.element, r.elements = smallElement(sh), sh.packets
	}
	r.parts = [][]byte{r.element}
	for range tunReadBatch {
		r.bufs = append(r.bufs, make([]byte, tun.MaxTrain))
	}
	err = h.Do(func() (err error) {
		r.dev, err = tun.Open(tun.Config{Name: "bench0"})
		return err
	})
	if err != nil {
		return nil, err
	}
	r.queue = r.dev.Queues()[0]
	if err := r.setUp(h); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *tunRig) setUp(h *netlab.Host) error {
	if err := h.SetUp("bench0", 0, netip.MustParsePrefix("10.77.0.1/24")); err != nil {
		return err
	}
	return h.Do(func() (err error) {
		r.inject, err = openInjector("bench0")
		return err
	})
}

func (r *tunRig) close() error {
	if r.inject >= 0 {
		_ = unix.Close(r.inject)
		r.inject = -1
	}
	return r.dev.Close()
}

// write times a batch that goes in. There is no route to its destination, so the host drops it at the first decision.
func (r *tunRig) write(warm bool) error {
	begin := time.Now()
	for range r.elements {
		if err := r.queue.Write(r.parts); err != nil {
			return fmt.Errorf("writing to the TUN: %w", err)
		}
	}
	if warm {
		r.writes.add(time.Since(begin))
	}
	return nil
}

// read makes the host send a batch, and times the reading of it.
func (r *tunRig) read(warm bool) error {
	for range r.elements {
		if _, err := unix.Write(r.inject, r.element); err != nil {
			return fmt.Errorf("sending through the TUN: %w", err)
		}
	}
	begin := time.Now()
	for left := r.elements; left > 0; {
		n, err := r.queue.Read(r.bufs, r.sizes)
		if err != nil {
			return fmt.Errorf("reading from the TUN: %w", err)
		}
		for _, size := range r.sizes[:n] {
			if size == len(r.element) { // else the host's own: a router solicitation
				left--
			}
		}
	}
	if warm {
		r.reads.add(time.Since(begin))
	}
	return nil
}

// openInjector opens a packet socket whose writes, with virtio-net headers, the device sends (packet(7)).
func openInjector(device string) (fd int, err error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return -1, err
	}
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	ipv4 := binary.NativeEndian.Uint16([]byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff})
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ipv4, Ifindex: link.Index}),
	)
	if err != nil {
		return -1, errors.Join(fmt.Errorf("opening a packet socket on %s: %w", device, err), unix.Close(fd))
	}
	return fd, nil
}

const (
	ipv4Len, tcpLen, udpLen = 20, 20, 8
	tcpCsumOffset           = 16
	udpCsumOffset           = 6
)

// trainElement is a TCP train as the kernel passes it, from a neighbour to nowhere.
func trainElement(sh shape) []byte {
	b := ipv4Element(unix.IPPROTO_TCP, tcpLen+sh.packets*(sh.size-ipv4Len-tcpLen))
	putVnetHdr(b, offload.GSOTCPv4, ipv4Len+tcpLen, sh.size-ipv4Len-tcpLen, tcpCsumOffset)
	tcp := b[offload.VnetHdrLen+ipv4Len:]
	binary.BigEndian.PutUint16(tcp, 40000)
	binary.BigEndian.PutUint16(tcp[2:], 9)
	tcp[12], tcp[13] = tcpLen/4<<4, 0x10 // ACK
	putPseudoSum(b, packet.TCP, tcpCsumOffset)
	return b
}

// smallElement is one UDP packet.
func smallElement(sh shape) []byte {
	b := ipv4Element(unix.IPPROTO_UDP, sh.size-ipv4Len)
	putVnetHdr(b, offload.GSONone, ipv4Len+udpLen, 0, udpCsumOffset)
	udp := b[offload.VnetHdrLen+ipv4Len:]
	binary.BigEndian.PutUint16(udp, 40000)
	binary.BigEndian.PutUint16(udp[2:], 9)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	putPseudoSum(b, packet.UDP, udpCsumOffset)
	return b
}

// ipv4Element is a virtio-net header and an IPv4 packet with room for n bytes.
func ipv4Element(protocol byte, n int) []byte {
	b := make([]byte, offload.VnetHdrLen+ipv4Len+n)
	ip := b[offload.VnetHdrLen:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, protocol // no options, DF
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], []byte{10, 77, 0, 2})
	copy(ip[16:], []byte{198, 18, 0, 1}) // RFC 2544: for benchmarks
	binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip[:ipv4Len]))
	return b
}

func putVnetHdr(b []byte, gso uint8, headers, size, csumOffset int) {
	h := offload.VnetHdr{
		Flags: offload.FlagNeedsCsum, GSOType: gso, HdrLen: uint16(headers), GSOSize: uint16(size),
		CsumStart: ipv4Len, CsumOffset: uint16(csumOffset),
	}
	h.Encode(b)
}

// putPseudoSum writes the pseudo-header checksum; the receiver completes it (VIRTIO_NET_HDR_F_NEEDS_CSUM).
func putPseudoSum(b []byte, protocol packet.Protocol, offset int) {
	ip := b[offload.VnetHdrLen:]
	sum := packet.Fold(packet.PseudoSum(ip, protocol, len(ip)-ipv4Len))
	binary.BigEndian.PutUint16(ip[ipv4Len+offset:], sum)
}
