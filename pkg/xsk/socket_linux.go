// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Socket is an AF_XDP socket on one queue. Receive, Refill and WakeRx are for one goroutine, Reserve, Submit, Release,
// Reap, OffloadChecksum and WakeTx for one, which may be the same; Frame, FD, Features, Frames, Pending, Nudge, Check and
// Stats are for any. None of them allocates or, but for the Wakes, Nudge, Check and Stats, calls the kernel. Close is for when both
// goroutines have left.
type Socket struct {
	sys      system
	fd       int
	features Features
	umem     []byte // all of the mapping
	frames   []byte // the part of umem that has frames: huge pages may leave a rest
	size     uint64 // of a frame
	rings    [][]byte

	_  [64]byte // the halves share no cache line
	rx rx
	_  [64]byte
	tx tx
	_  [64]byte

	statsMu sync.Mutex
	closed  bool
	last    Stats // as they were at Close
}

// FD is the socket's descriptor: to be put into an XSKMAP at the key of its queue, and to wait for packets (POLLIN)
// with poll(2), which wakes the kernel as well. It stays the Socket's. It is -1 once closed.
//
// A device that goes away does not end a poll (Linux reports no POLLERR): whoever waits should hear of that elsewhere,
// from netlink, and ask Check.
func (s *Socket) FD() int { return s.fd }

// Features says what the Socket found it can do.
func (s *Socket) Features() Features { return s.features }

// Frame is the memory that d names: d.Len bytes, with capacity up to the frame's end. It is the caller's to write from
// Receive to Refill and from Reserve to Submit or Release. For a name outside of the UMEM, or that crosses from one
// frame to the next, it is nil.
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

// Receive fills into with the frames that have arrived, oldest first, and returns how many; it does not block. They are
// the caller's until Refill. A packet of several frames is returned whole, unless it is longer than all of into.
func (s *Socket) Receive(into []Desc) int { return s.rx.receive(into) }

// Refill gives frames that Receive returned back to be received into, in any order; Addr may have moved within a frame.
func (s *Socket) Refill(descs []Desc) { s.rx.refill(descs) }

// Reserve gives the caller frames to send, as many as there are and into holds, and returns how many. Each is named
// whole: write to Frame(d), set d.Len to what was written, give it to Submit; or back, to Release.
//
// None is left when all are on their way: WakeTx, and ask again.
func (s *Socket) Reserve(into []Desc) int { return s.tx.reserve(into) }

// Submit queues frames that Reserve returned for sending, in order, and returns how many it took; WakeTx sends them.
// Addr may have moved up within the frame. A packet that the kernel would not take is refused and counted, and its
// frames are free again.
func (s *Socket) Submit(descs []Desc) int { return s.tx.submit(descs) }

// Release frees frames that Reserve returned and that were not submitted.
func (s *Socket) Release(descs []Desc) { s.tx.release(descs) }

// Reap takes back the frames that were sent, and returns how many. Reserve calls it when it has too few.
func (s *Socket) Reap() int { return s.tx.reap() }

// Pending is how many submitted frames the kernel has not looked at yet. Any goroutine may ask.
func (s *Socket) Pending() int { return int(s.tx.ring.pending()) }

// OffloadChecksum has the device, or the kernel for it, compute the Internet checksum of the packet from byte start to
// its end, and put it at start+offset, where the caller has put that of the pseudo header (not inverted). d must be
// reserved, begin its packet, and have its final Len. It reports false, and changes nothing, without
// Features.TxChecksum or where the checksum is not within d.
func (s *Socket) OffloadChecksum(d *Desc, start, offset uint16) bool {
	return s.tx.requestChecksum(d, start, offset)
}

// Frames says where all frames are, by the counters. It may be asked by any goroutine; while the halves are at work, frames that
// change hands meanwhile may be missing or counted twice. Once closed, there are none.
func (s *Socket) Frames() Frames {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	if s.closed {
		return Frames{}
	}
	f := Frames{
		RxUser:   difference(s.rx.received.Load(), s.rx.refilled.Load()),
		TxKernel: difference(s.tx.sent.Load(), s.tx.completed.Load()),
		TxDone:   int(s.tx.completion.pending()),
		TxUser:   difference(s.tx.reserved.Load(), s.tx.sent.Load()+s.tx.released.Load()),
	}
	f.TxDone = min(f.TxDone, f.TxKernel)
	f.RxKernel = max(len(s.rx.frames.owners)-f.RxUser, 0)
	f.TxFree = max(len(s.tx.frames.owners)-f.TxUser-f.TxKernel, 0)
	return f
}

// difference is how far one counter is ahead of another, and 0 if it seems to be behind, because it was read earlier.
func difference(ahead, behind uint64) int { return max(int(ahead-behind), 0) }

// Stats returns the counters. Once closed, they are as they were.
func (s *Socket) Stats() (Stats, error) {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	if s.closed {
		return s.last, nil
	}
	return s.readStats()
}

func (s *Socket) readStats() (Stats, error) {
	stats := Stats{
		Received: s.rx.received.Load(), Sent: s.tx.sent.Load(), Completed: s.tx.completed.Load(),
		Rejected: s.tx.rejected.Load(), Misowned: s.rx.misowned.Load() + s.tx.misowned.Load(),
		TxRefused: s.tx.refused.Load() + s.tx.dropped.Load(), RxWakes: s.rx.wakes.Load(), TxWakes: s.tx.wakes.Load(),
	}
	var k unix.XDPStatistics // what an older kernel does not know stays zero
	if _, err := s.sys.getBytes(s.fd, unix.SOL_XDP, unix.XDP_STATISTICS, statistics(&k)); err != nil {
		return stats, fmt.Errorf("reading the statistics of an AF_XDP socket: %w", err)
	}
	stats.RxDropped, stats.RxRingFull, stats.FillEmpty = k.Rx_dropped, k.Rx_ring_full, k.Rx_fill_ring_empty_descs
	stats.RxInvalid, stats.TxInvalid, stats.TxEmpty = k.Rx_invalid_descs, k.Tx_invalid_descs, k.Tx_ring_empty_descs
	return stats, nil
}

// Close ends the Socket: the kernel takes it out of all maps, so that the XDP program's fallback applies, and has no
// frame any more when Close returns, or holds the memory itself for as long as a device still writes to it. All slices
// of Frame become invalid. Neither goroutine may be in a method or use a frame; afterwards the methods do nothing.
// Another Close returns nil.
func (s *Socket) Close() error {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	if s.fd >= 0 {
		s.last, _ = s.readStats()
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

// detach lets go of all views of what is about to be unmapped.
func (s *Socket) detach() {
	s.rx.ring, s.rx.fill = newConsumer[Desc](inert(), nil), newProducer[uint64](inert(), nil)
	s.tx.ring, s.tx.completion = newProducer[Desc](inert(), nil), newConsumer[uint64](inert(), nil)
	s.rx.frames.owners, s.tx.frames.owners, s.tx.free = nil, nil, nil
	s.frames, s.tx.umem = nil, nil
}
