// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Socket is an AF_XDP socket on one queue. One goroutine may call Receive, Refill and WakeRx. One goroutine, which
// may be the same, may call Reserve, Submit, Release, OffloadChecksum and WakeTx. Any goroutine may call Frame,
// FD, Features, Frames, Pending, KickTx, Check and Stats. No method allocates. Only WakeRx, WakeTx, KickTx, Check,
// Stats and Close call the kernel. Close may be called after both goroutines have stopped.
type Socket struct {
	sys      system
	fd       int
	features Features
	umem     []byte // the whole mapping
	frames   []byte // the part of umem that is divided into frames; a huge page may leave a remainder
	size     uint64 // of a frame, in bytes
	rings    [][]byte

	_  [64]byte // the halves share no cache line
	rx rx
	_  [64]byte
	tx tx
	_  [64]byte

	statsMu    sync.Mutex
	closed     bool
	finalStats Stats // the counters at Close
}

// FD returns the socket's descriptor, or -1 once closed. The caller puts it into an XSKMAP at the key of its queue,
// and waits for packets (POLLIN) with poll(2), which also wakes the kernel. The Socket owns it.
//
// Linux reports no POLLERR when the device is deleted. A caller that waits should learn that from netlink, and call
// Check.
func (s *Socket) FD() int { return s.fd }

// Features returns the features that Open has established.
func (s *Socket) Features() Features { return s.features }

// Frame returns the memory of d: d.Len bytes, with capacity up to the frame's end. The caller may
// write to it from Receive to Refill and from Reserve to Submit or Release. Frame returns nil for
// a descriptor outside of the UMEM or across a frame boundary.
func (s *Socket) Frame(d Desc) []byte {
	if d.Addr >= uint64(len(s.frames)) {
		return nil
	}
	end := d.Addr&^(s.size-1) + s.size
	if d.Addr+uint64(d.Len) > end {
		return nil
	}
	return s.frames[d.Addr : d.Addr+uint64(d.Len) : end]
}

// Receive fills into with received frames, oldest first, and returns their number. It does not block. The frames
// belong to the caller until Refill.
func (s *Socket) Receive(into []Desc) int { return s.rx.receive(into) }

// Refill returns received frames to the kernel for receiving, in any order. Addr may have moved within a frame.
func (s *Socket) Refill(descs []Desc) { s.rx.refill(descs) }

// Reserve gives the caller up to len(into) free frames for sending, and returns their number. Each Desc covers a
// whole frame. Write to Frame(d), set d.Len to the number of bytes written, and pass d to Submit, or to Release.
//
// None is free when all are queued for sending: call WakeTx and Reserve again.
func (s *Socket) Reserve(into []Desc) int { return s.tx.reserve(into) }

// Submit queues reserved frames for sending, in order, and returns the number queued; WakeTx sends them. Addr may
// have moved up within the frame. A packet that the kernel would not accept is rejected and counted, and its frames
// are freed.
func (s *Socket) Submit(descs []Desc) int { return s.tx.submit(descs) }

// Release frees reserved frames that were not submitted.
func (s *Socket) Release(descs []Desc) { s.tx.release(descs) }

// Pending returns the number of submitted frames that the kernel has not processed yet. Any goroutine may call it.
func (s *Socket) Pending() int { return int(s.tx.ring.pending()) }

// TxProgress returns the number of frames that the kernel has completed, modulo 2³², and the
// number that it has. It has frames that are not sent yet, and frames in the device. While frames
// are submitted the latter may be some too small. Any goroutine may call it until Close.
func (s *Socket) TxProgress() (completed uint32, outstanding int) {
	sent := uint32(s.tx.sent.Load())
	completed = s.tx.completion.producer.Load()
	return completed, max(int(int32(sent-completed)), 0)
}

// OffloadChecksum requests that the device, or the kernel in its place, compute the Internet
// checksum of the packet. The checksum covers byte start to the packet's end, and is stored at
// start+offset. The caller has put the pseudo-header sum there (not inverted). d must be reserved
// and have its final Len. OffloadChecksum returns false, and changes nothing, without
// Features.TxChecksum or if the checksum field is not within d.
func (s *Socket) OffloadChecksum(d *Desc, start, offset uint16) bool {
	return s.tx.requestChecksum(d, start, offset)
}

// Frames counts where all frames are. Any goroutine may call it. While the halves are in use, frames that move
// meanwhile may be missing or counted twice. Once closed, all counts are zero.
func (s *Socket) Frames() Frames {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	if s.closed {
		return Frames{}
	}
	f := Frames{
		RxUser:   countDifference(s.rx.received.Load(), s.rx.refilled.Load()),
		TxKernel: countDifference(s.tx.sent.Load(), s.tx.completed.Load()),
		TxDone:   int(s.tx.completion.pending()),
		TxUser:   countDifference(s.tx.reserved.Load(), s.tx.sent.Load()+s.tx.released.Load()),
	}
	f.TxDone = min(f.TxDone, f.TxKernel)
	f.RxKernel = max(len(s.rx.frames.owners)-f.RxUser, 0)
	f.TxFree = max(len(s.tx.frames.owners)-f.TxUser-f.TxKernel, 0)
	return f
}

// countDifference returns ahead - behind, or 0 if that is negative because behind was read later.
func countDifference(ahead, behind uint64) int { return max(int(ahead-behind), 0) }

// Stats returns the counters. Once closed, it returns their values at Close.
func (s *Socket) Stats() (Stats, error) {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	if s.closed {
		return s.finalStats, nil
	}
	return s.readStats()
}

func (s *Socket) readStats() (Stats, error) {
	stats := Stats{
		Received: s.rx.received.Load(), Sent: s.tx.sent.Load(), Completed: s.tx.completed.Load(),
		Rejected: s.tx.rejected.Load(), FrameOwnershipErrors: s.rx.frameOwnershipErrors.Load() + s.tx.frameOwnershipErrors.Load(),
		TxRefused: s.tx.refused.Load() + s.tx.refusedByKick.Load(),
	}
	var k unix.XDPStatistics // counters unknown to an older kernel stay zero
	if _, err := s.sys.getBytes(s.fd, unix.SOL_XDP, unix.XDP_STATISTICS, bytesOf(&k)); err != nil {
		return stats, fmt.Errorf("reading the statistics of an AF_XDP socket: %w", err)
	}
	stats.RxDropped, stats.RxRingFull = k.Rx_dropped, k.Rx_ring_full
	stats.RxInvalid, stats.TxInvalid = k.Rx_invalid_descs, k.Tx_invalid_descs
	return stats, nil
}

// Close closes the Socket. The kernel removes it from all maps, so the XDP program's fallback applies. When Close
// returns the kernel uses no frame any more, or holds the memory itself while a device still writes to it. All slices
// from Frame become invalid. Neither goroutine may be in a method or use a frame. Afterwards the methods do nothing.
// A second Close returns nil.
func (s *Socket) Close() error {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	if s.fd >= 0 {
		s.finalStats, _ = s.readStats()
		errs = append(errs, s.sys.close(s.fd))
		s.fd = -1
	}
	s.detach()
	for _, ring := range s.rings {
		errs = append(errs, s.sys.munmap(ring))
	}
	if s.umem != nil {
		errs = append(errs, s.sys.munmap(s.umem))
	}
	s.rings, s.umem = nil, nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing an AF_XDP socket: %w", err)
	}
	return nil
}

// detach drops all references to the memory that Close unmaps.
func (s *Socket) detach() {
	s.rx.ring, s.rx.fill = newConsumer[Desc](emptyIndices(), nil), newProducer[uint64](emptyIndices(), nil)
	s.tx.ring, s.tx.completion = newProducer[Desc](emptyIndices(), nil), newConsumer[uint64](emptyIndices(), nil)
	s.rx.frames.owners, s.tx.frames.owners, s.tx.free = nil, nil, nil
	s.frames, s.tx.umem = nil, nil
}
