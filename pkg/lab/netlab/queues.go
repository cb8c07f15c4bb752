// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// maxQueues is the number of queues that are counted. Packets on higher queues are ignored.
const maxQueues = 256

// maxPacket is larger than every packet and train, and smaller than a block of the capture's ring.
const maxPacket = 128 << 10

// QueueCount counts the packets of one transmit queue or one receive queue of a device.
type QueueCount struct {
	Packets uint64 `json:"packets"` // packets on the wire: a train counts as its segments
	Trains  uint64 `json:"trains"`  // skbs that the device handled: a train counts once, as does a single packet
	Bytes   uint64 `json:"bytes"`   // including the Ethernet header, once per train
}

// queueCounter is a socket filter that counts packets by queue and truncates them (CaptureConfig.SnapLen). It drops none. The first
// half of its map counts sent packets, the second half received ones.
type queueCounter struct {
	counts *ebpf.Map
	filter *ebpf.Program
}

// newQueueCounter loads the filter. offset is the device's rxQueueOffset; snapLen and fullPacketOneIn are as in CaptureConfig.
func newQueueCounter(offset, snapLen, fullPacketOneIn int) (*queueCounter, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raising the locked memory limit: %w", err)
	}
	counts, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "rw_lab_queues", Type: ebpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 2 * maxQueues,
	})
	if err != nil {
		return nil, fmt.Errorf("creating the queue counters: %w", err)
	}
	filter, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "rw_lab_queues", Type: ebpf.SocketFilter, License: "GPL",
		Instructions: append(countQueues(counts.FD(), int32(offset)), keepBytes(int32(snapLen), int32(fullPacketOneIn))...),
	})
	if err != nil {
		counts.Close()
		return nil, fmt.Errorf("loading the queue counter: %w", err)
	}
	return &queueCounter{counts: counts, filter: filter}, nil
}

// Offsets in struct __sk_buff (linux/bpf.h).
const (
	skbLen          = 0
	skbPacketType   = 4
	skbQueueMapping = 12
	skbGSOSegs      = 164
)

// rxQueueOffset returns the difference between a received packet's queue_mapping and its receive queue. It is 1 where the
// driver records the queue (skb_record_rx_queue), since 0 means that none was recorded. A veth records none: its packets
// keep the transmit queue of the other end (Linux 5.17, commit 710ad98c363a, and 5.10.93).
func rxQueueOffset(linkType string) int {
	if linkType == "veth" {
		return 0
	}
	return 1
}

// countQueues returns the instructions that count a packet. An outgoing packet's queue_mapping is its transmit queue.
func countQueues(counts int, offset int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbPacketType, asm.Word),
		asm.LoadMem(asm.R1, asm.R6, skbQueueMapping, asm.Word),
		asm.JGE.Imm(asm.R1, maxQueues, "pass"),
		asm.JEq.Imm(asm.R2, unix.PACKET_OUTGOING, "count"),
		asm.JLT.Imm(asm.R1, offset, "pass"),
		asm.Add.Imm(asm.R1, maxQueues-offset),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word).WithSymbol("count"),
		asm.LoadMapPtr(asm.R1, counts),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),

		asm.LoadMem(asm.R1, asm.R6, skbGSOSegs, asm.Word),
		asm.JNE.Imm(asm.R1, 0, "train"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord).WithSymbol("train"),
		asm.Add.Imm(asm.R0, 8),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Add.Imm(asm.R0, 8),
		asm.LoadMem(asm.R1, asm.R6, skbLen, asm.Word),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
	}
}

// keepBytes returns the instructions that end the filter with the number of bytes to keep. It
// keeps all of one in fullPacketOneIn packets, at random, and snapLen of the others.
func keepBytes(snapLen, fullPacketOneIn int32) asm.Instructions {
	if fullPacketOneIn <= 0 {
		return asm.Instructions{asm.Mov.Imm(asm.R0, snapLen).WithSymbol("pass"), asm.Return()}
	}
	return asm.Instructions{
		asm.FnGetPrandomU32.Call().WithSymbol("pass"),
		asm.Mod.Imm32(asm.R0, fullPacketOneIn),
		asm.JEq.Imm(asm.R0, 0, "whole"),
		asm.Mov.Imm(asm.R0, snapLen),
		asm.Return(),
		asm.Mov.Imm(asm.R0, maxPacket).WithSymbol("whole"),
		asm.Return(),
	}
}

// attach installs the filter on a socket.
func (q *queueCounter) attach(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, q.filter.FD()); err != nil {
		return fmt.Errorf("attaching the queue counter: %w", err)
	}
	return nil
}

// read returns n counters, beginning with the map's entry first.
func (q *queueCounter) read(first, n int) ([]QueueCount, error) {
	out := make([]QueueCount, min(n, maxQueues))
	for i := range out {
		var v [3]uint64
		if err := q.counts.Lookup(uint32(first+i), &v); err != nil {
			return nil, fmt.Errorf("reading the counters of queue %d: %w", i, err)
		}
		out[i] = QueueCount{Packets: v[0], Trains: v[1], Bytes: v[2]}
	}
	return out, nil
}

func (q *queueCounter) close() {
	q.filter.Close()
	q.counts.Close()
}
