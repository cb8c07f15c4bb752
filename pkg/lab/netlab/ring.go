// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// blockSize is room for the largest train. With few packets, a reader may be late by
	// blockCount * retireTimeoutMs before some are missed: seconds, for an emulated machine.
	blockSize       = 128 << 10
	blockCount      = 128
	retireTimeoutMs = 40 // after this time the kernel hands over a block that is not full
)

// Offsets in the ring's blocks and frames: struct tpacket_block_desc and struct tpacket3_hdr of linux/if_packet.h. The
// frame's sockaddr_ll follows the header, aligned to 16 bytes.
const (
	blockStatus   = 8
	blockPackets  = 12
	blockFirst    = 16
	frameNext     = 0
	frameCaptured = 12
	frameLength   = 16
	frameMAC      = 24
	frameAddr     = (unix.SizeofTpacket3Hdr + 15) &^ 15
	frameType     = frameAddr + 10 // sll_pkttype
)

// ring is the mapped receive ring of an AF_PACKET socket (TPACKET_V3). One goroutine uses it.
//
// The rule for unsafe: a block belongs to the kernel until its status word has TP_STATUS_USER.
// Then it belongs to this process until it stores TP_STATUS_KERNEL. The word is accessed only
// atomically, through statusOf, and is aligned inside mem.
type ring struct {
	fd   int
	mem  []byte
	next int
}

func newRing(fd int) (*ring, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return nil, fmt.Errorf("choosing TPACKET_V3: %w", err)
	}
	req := unix.TpacketReq3{
		Block_size: blockSize, Block_nr: blockCount,
		Frame_size: 2048, Frame_nr: blockSize / 2048 * blockCount,
		Retire_blk_tov: retireTimeoutMs,
	}
	if err := unix.SetsockoptTpacketReq3(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return nil, fmt.Errorf("creating a capture ring: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, blockSize*blockCount, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping a capture ring: %w", err)
	}
	return &ring{fd: fd, mem: mem}, nil
}

func (r *ring) close() error { return unix.Munmap(r.mem) }

// read calls handle with the packets of all blocks that the kernel has handed over. It reports whether there was such a block.
func (r *ring) read(handle func(Packet)) bool {
	found := false
	for {
		block := r.mem[r.next*blockSize : (r.next+1)*blockSize]
		status := statusOf(block)
		if status.Load()&unix.TP_STATUS_USER == 0 {
			return found
		}
		readBlock(block, handle)
		status.Store(unix.TP_STATUS_KERNEL)
		r.next = (r.next + 1) % blockCount
		found = true
	}
}

func statusOf(block []byte) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&block[blockStatus]))
}

func readBlock(block []byte, handle func(Packet)) {
	n := binary.NativeEndian.Uint32(block[blockPackets:])
	at := binary.NativeEndian.Uint32(block[blockFirst:])
	for range n {
		frame := block[at:]
		mac := uint32(binary.NativeEndian.Uint16(frame[frameMAC:]))
		captured := binary.NativeEndian.Uint32(frame[frameCaptured:])
		handle(Packet{
			Data:     frame[mac : mac+captured],
			Len:      int(binary.NativeEndian.Uint32(frame[frameLength:])),
			Outgoing: frame[frameType] == unix.PACKET_OUTGOING,
		})
		at += binary.NativeEndian.Uint32(frame[frameNext:])
	}
}
