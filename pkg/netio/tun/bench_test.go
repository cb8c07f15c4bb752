// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/test/cost"
	"github.com/ropewalk/ropewalk/test/expect"
)

// burst is a number of trains sent to a TUN device at once: packets IP packets per train, of size bytes each.
type burst struct {
	name                  string
	trains, packets, size int
}

var bursts = []burst{
	{"train of 45x1420B", 1, 45, 1420},
	{"45 single 1420B", 45, 1, 1420},
	{"64 single 64B", 64, 1, 64},
}

const udpHeaders = 20 + 8

func (s burst) bytes() int { return s.trains * s.packets * s.size }

// BenchmarkRead is reading alone what waits in the queue of the device.
func BenchmarkRead(b *testing.B) {
	for _, s := range bursts {
		b.Run(s.name, func(b *testing.B) {
			d := openForBenchmark(b)
			if s.packets > 1 && !d.Features().USO {
				b.Skip("needs USO (Linux 6.2) for a train of UDP")
			}
			send := sender(b, s)
			q, bufs, sizes := d.Queues()[0], make([][]byte, s.trains), make([]int, s.trains)
			for i := range bufs {
				bufs[i] = make([]byte, tun.MaxTrain)
			}
			m := cost.OfCalls(b, s.trains*s.packets, s.bytes())
			for b.Loop() {
				m.Outside(send)
				for got := 0; got < s.trains; {
					n, err := q.Read(bufs, sizes)
					if err != nil {
						b.Fatal(err)
					}
					got += n
				}
			}
			m.Report()
			if want := offload.VnetHdrLen + udpHeaders + s.packets*(s.size-udpHeaders); sizes[0] != want {
				b.Fatalf("a train of %d bytes, want %d", sizes[0], want)
			}
		})
	}
}

// BenchmarkWrite measures up to the host's IP stack, which drops the packets early: their IP checksum is wrong.
func BenchmarkWrite(b *testing.B) {
	for _, s := range bursts {
		b.Run(s.name, func(b *testing.B) {
			q := openForBenchmark(b).Queues()[0]
			buffers := trainBuffers(s)
			m := cost.OfCalls(b, s.trains*s.packets, s.bytes())
			for b.Loop() {
				for range s.trains {
					if err := q.Write(buffers); err != nil {
						b.Fatal(err)
					}
				}
			}
			m.Report()
		})
	}
}

func openForBenchmark(b *testing.B) tun.Device {
	enterNamespace(b)
	d := open(b, tun.Config{Name: "rw0"})
	newHost(b, d).leaveUnseen()
	return d
}

// leaveUnseen ends the capture, which would take a copy of each packet.
func (h *host) leaveUnseen() {
	expect.NoError(h.t, unix.Close(h.packet))
	h.packet = -1
}

// sender returns a function by which the host sends a burst into the device.
func sender(b *testing.B, s burst) func() {
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(tuntest.Prefix().Addr().Next(), 4243))
	c, err := net.DialUDP("udp4", nil, to)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	if s.packets > 1 {
		segment(b, c, s.size-udpHeaders)
	}
	payload := make([]byte, s.packets*(s.size-udpHeaders))
	return func() {
		for range s.trains {
			if _, err := c.Write(payload); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// segment has the kernel take what is written for a train of datagrams of size bytes.
func segment(b *testing.B, c *net.UDPConn, size int) {
	raw, err := c.SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) })
	if err != nil {
		b.Skipf("needs UDP_SEGMENT: %v", err)
	}
}

// trainBuffers returns a TCP train or packet as the merger does: the headers, then the payload of each packet.
func trainBuffers(s burst) [][]byte {
	const tcpHeaders = 20 + 20
	header := make([]byte, offload.VnetHdrLen+tcpHeaders)
	if s.packets > 1 {
		v := offload.VnetHdr{
			Flags: offload.FlagNeedsCsum, GSOType: offload.GSOTCPv4, GSOSize: uint16(s.size - tcpHeaders),
			HdrLen: tcpHeaders, CsumStart: 20, CsumOffset: 16,
		}
		v.Encode(header)
	}
	ip := header[offload.VnetHdrLen:]
	ip[0], ip[8], ip[9], ip[32] = 0x45, 64, unix.IPPROTO_TCP, 0x50
	size := tcpHeaders + s.packets*(s.size-tcpHeaders)
	ip[2], ip[3] = byte(size>>8), byte(size)
	buffers := [][]byte{header}
	for range s.packets {
		buffers = append(buffers, make([]byte, s.size-tcpHeaders))
	}
	return buffers
}
