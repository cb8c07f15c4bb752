// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/cost"
)

// The distance of the packets of a train in the buffer in which it is sealed, and their offset there.
const (
	scatterStride   = 1420 + 32
	scatterHeadroom = 16
)

// BenchmarkScatter compares reading a train and splitting it, as the engine does, with one readv that puts the payload of each packet where it
// will be sealed, for a train whose segment size was predicted.
func BenchmarkScatter(b *testing.B) {
	s := bursts[0]
	var results [2][]byte
	for i, name := range []string{"read, then split", "readv into packets"} {
		b.Run(name, func(b *testing.B) {
			d := openForBenchmark(b)
			if !d.Features().USO {
				b.Skip("needs USO (Linux 6.2) for a train of UDP")
			}
			dst := make([]byte, s.packets*scatterStride)
			take := readThenSplit(b, tunFD(b), dst)
			if i > 0 {
				take = readIntoPackets(b, tunFD(b), dst, s)
			}
			send, m := sender(b, s), cost.OfCalls(b, s.packets, s.bytes())
			for b.Loop() {
				m.Outside(send)
				take()
			}
			m.Report()
			results[i] = withoutIdentity(b, dst, s.packets)
		})
	}
	if results[0] != nil && results[1] != nil && !bytes.Equal(results[0], results[1]) {
		b.Error("the packets differ")
	}
}

// tunFD returns the descriptor of the only TUN queue of this process.
func tunFD(b *testing.B) int {
	all, _ := filepath.Glob("/proc/self/fd/*") // the pattern is valid
	for _, path := range all {
		if target, err := os.Readlink(path); err == nil && target == "/dev/net/tun" {
			fd, _ := strconv.Atoi(filepath.Base(path))
			return fd
		}
	}
	b.Fatal("no TUN queue is open")
	return 0
}

// readThenSplit reads a train into one buffer, and copies its packets to dst.
func readThenSplit(b *testing.B, fd int, dst []byte) func() {
	buf := make([]byte, 1<<16+offload.VnetHdrLen)
	var train offload.Train
	var header offload.VnetHdr
	return func() {
		n, err := unix.Read(fd, buf)
		if err != nil {
			b.Fatal(err)
		}
		header.Decode(buf)
		if reason := train.Parse(header, buf[offload.VnetHdrLen:n]); reason != drop.None {
			b.Fatal(reason)
		}
		train.Split(dst, scatterStride, scatterHeadroom, 0, train.Segments())
	}
}

// readIntoPackets reads the payload of each packet to its place in dst, and writes the headers.
func readIntoPackets(b *testing.B, fd int, dst []byte, s burst) func() {
	header := make([]byte, offload.VnetHdrLen+udpHeaders)
	vectors := []unix.Iovec{{Base: &header[0], Len: uint64(len(header))}}
	for i := range s.packets {
		v := unix.Iovec{Base: &dst[i*scatterStride+scatterHeadroom+udpHeaders]}
		v.SetLen(s.size - udpHeaders)
		vectors = append(vectors, v)
	}
	want := len(header) + s.packets*(s.size-udpHeaders)
	return func() {
		n, _, errno := unix.Syscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&vectors[0])), uintptr(len(vectors)))
		if errno != 0 || int(n) != want {
			b.Fatal(fmt.Errorf("reading a train of %d bytes: %d, %w", want, n, errno))
		}
		for i := range s.packets {
			at := i*scatterStride + scatterHeadroom
			finishDatagram(dst[at:at+s.size], header[offload.VnetHdrLen:], i)
		}
	}
}

// finishDatagram writes the headers of packet i of a train in front of its payload.
func finishDatagram(pkt, header []byte, i int) {
	copy(pkt, header)
	ip, udp := packet.IPv4(pkt), packet.UDPHeader(pkt[packet.IPv4HeaderLen:])
	ip.SetTotalLen(len(pkt))
	ip.SetID(ip.ID() + uint16(i))
	ip.SetChecksum(0)
	ip.SetChecksum(packet.Checksum(pkt[:packet.IPv4HeaderLen]))
	udp.SetLen(len(udp))
	udp.SetChecksum(0)
	udp.SetChecksum(packet.UDPChecksum(packet.Sum(udp, packet.PseudoSum(pkt, packet.UDP, len(udp)))))
}

// withoutIdentity returns the packets in dst without what differs between two trains: the IPv4 ID, its checksum, and the source port.
func withoutIdentity(b *testing.B, dst []byte, packets int) []byte {
	for i := range packets {
		pkt := dst[i*scatterStride+scatterHeadroom : (i+1)*scatterStride-scatterHeadroom]
		if !offload.ChecksumsOK(pkt) {
			b.Errorf("packet %d has a wrong checksum", i)
		}
		clear(pkt[4:6])
		clear(pkt[10:12])
		clear(pkt[20:22])
		clear(pkt[26:28])
	}
	return dst
}
