// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Open opens a Socket on a queue of a device in the network namespace of the calling thread. Nothing arrives before the
// caller has put its FD into the map of an XDP program; it can send at once.
//
// Errors: ErrBusy when the queue is still in use after Config.Patience, ErrNoQueue, ErrGone when there is no such
// device, ErrDown; os.ErrPermission without CAP_NET_RAW; errors.ErrUnsupported where the kernel has no AF_XDP, or the
// device no ZeroCopy that was demanded; ENOBUFS when the limit of locked memory is too low. A failed Open leaves
// nothing behind.
func Open(c Config) (*Socket, error) { return open(c, linux{}) }

func open(c Config, sys system) (*Socket, error) {
	c, err := c.complete(os.Getpagesize())
	if err != nil {
		return nil, fmt.Errorf("opening an AF_XDP socket: %w", err)
	}
	s := &Socket{sys: sys, fd: -1}
	if err := s.setUp(&c); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Socket) setUp(c *Config) (err error) {
	length := (c.RxFrames + c.TxFrames) * c.FrameSize
	if s.umem, s.features.HugePages, err = mapUMEM(s.sys, length, c.NoHugePages); err != nil {
		return err
	}
	s.frames, s.size = s.umem[:length:length], uint64(c.FrameSize)
	if s.fd, err = s.sys.socket(); err != nil {
		s.fd = -1
		return explainSocket(err)
	}
	if err := s.registerUMEM(c); err != nil {
		return err
	}
	if err := s.mapRings(c); err != nil {
		return err
	}
	s.share(c)
	s.tune(c)
	if err := s.bind(c); err != nil {
		return err
	}
	return s.learn(c)
}

// mapRings makes the four rings, each with a place for every frame that can be in it, and maps them.
func (s *Socket) mapRings(c *Config) error {
	var at unix.XDPMmapOffsets
	sizes := [...]struct{ option, size int }{
		{unix.XDP_UMEM_FILL_RING, c.RxFrames},
		{unix.XDP_RX_RING, c.RxFrames},
		{unix.XDP_TX_RING, c.TxFrames},
		{unix.XDP_UMEM_COMPLETION_RING, c.TxFrames},
	}
	for _, r := range sizes {
		if err := s.sys.setInt(s.fd, unix.SOL_XDP, r.option, r.size); err != nil {
			return fmt.Errorf("making a ring of %d: %w", r.size, err)
		}
	}
	bytes := mmapOffsets(&at)
	n, err := s.sys.getBytes(s.fd, unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, bytes)
	if err != nil {
		return fmt.Errorf("learning where the rings are: %w", err)
	}
	if n != len(bytes) { // before Linux 5.4, which has no flags
		return fmt.Errorf("learning where the rings are: %w", errors.ErrUnsupported)
	}
	rxIndices, rxItems, err1 := mapRing[Desc](s, unix.XDP_PGOFF_RX_RING, &at.Rx, c.RxFrames)
	fillIndices, fillItems, err2 := mapRing[uint64](s, unix.XDP_UMEM_PGOFF_FILL_RING, &at.Fr, c.RxFrames)
	txIndices, txItems, err3 := mapRing[Desc](s, unix.XDP_PGOFF_TX_RING, &at.Tx, c.TxFrames)
	doneIndices, doneItems, err4 := mapRing[uint64](s, unix.XDP_UMEM_PGOFF_COMPLETION_RING, &at.Cr, c.TxFrames)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	s.rx.ring, s.rx.fill = newConsumer(rxIndices, rxItems), newProducer(fillIndices, fillItems)
	s.tx.ring, s.tx.completion = newProducer(txIndices, txItems), newConsumer(doneIndices, doneItems)
	return nil
}

// mapRing maps one ring of n items; Close unmaps it.
func mapRing[T Desc | uint64](s *Socket, offset int64, at *unix.XDPRingOffset, n int) (indices, []T, error) {
	const most = 1 << 20 // far behind the indices; what is more is nonsense
	if at.Desc > most {
		return indices{}, nil, errBadOffsets
	}
	mem, err := s.sys.mmap(s.fd, offset, ringLength[T](at, n), unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return indices{}, nil, fmt.Errorf("mapping a ring: %w", err)
	}
	s.rings = append(s.rings, mem)
	return ringView[T](mem, at, n)
}

// share deals out the frames: the first to receive into, the others to send from.
func (s *Socket) share(c *Config) {
	shift := uint(bits.TrailingZeros(uint(c.FrameSize)))
	s.rx.frames = ledger{shift: shift, owners: make([]owner, c.RxFrames)}
	s.tx.frames = ledger{first: uint64(c.RxFrames) << shift, shift: shift, owners: make([]owner, c.TxFrames)}
	s.tx.free = make([]uint64, 0, c.TxFrames)
	s.tx.limit, s.tx.umem = s.size, s.frames
	s.rx.start()
	s.tx.start()
}

// defaultTxBudget is how many frames a send hands over in copy mode where it cannot be set (TX_BATCH_SIZE of Linux).
const defaultTxBudget = 32

// tune sets what makes it faster, as far as the kernel has it.
func (s *Socket) tune(c *Config) {
	s.features.TxBudget = defaultTxBudget
	if s.sys.setInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, c.TxFrames) == nil {
		s.features.TxBudget = c.TxFrames
	}
	// In copy mode the send buffer is a second bound on what is under way, of 90 full frames by default.
	sndbuf := c.TxFrames * c.FrameSize // which the kernel doubles
	if s.sys.setInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sndbuf) != nil {
		_ = s.sys.setInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sndbuf)
	}
	s.features.BusyPoll = c.BusyPoll > 0 && s.busyPoll(c)
}

// busyPoll turns busy polling on, all or nothing.
func (s *Socket) busyPoll(c *Config) bool {
	type option struct{ name, value int }
	options := []option{
		{unix.SO_PREFER_BUSY_POLL, 1},
		{unix.SO_BUSY_POLL, int(max(c.BusyPoll.Microseconds(), 1))},
	}
	if c.BusyPollBudget > 0 {
		options = append(options, option{unix.SO_BUSY_POLL_BUDGET, c.BusyPollBudget})
	}
	for _, o := range options {
		if s.sys.setInt(s.fd, unix.SOL_SOCKET, o.name, o.value) != nil {
			_ = s.sys.setInt(s.fd, unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL, 0)
			return false
		}
	}
	return true
}

// learn finds out what the socket became.
func (s *Socket) learn(c *Config) error {
	var options [4]byte
	if _, err := s.sys.getBytes(s.fd, unix.SOL_XDP, unix.XDP_OPTIONS, options[:]); err != nil {
		return fmt.Errorf("learning the mode: %w", err)
	}
	var device Capabilities
	switch {
	case options != [4]byte{}: // XDP_OPTIONS_ZEROCOPY is the only bit there is
		s.features.Mode = ZeroCopy
		device, _ = s.sys.probe(c.Interface) // of a kernel before 6.3 nothing is known, and nothing then assumed
	case c.Mode == Generic:
		s.features.Mode = Generic
	default:
		s.features.Mode = Copy
	}
	s.tx.fragments = 1
	if s.features.MultiBuffer {
		s.tx.fragments = MaxFragments
		if s.features.Mode == ZeroCopy {
			s.tx.fragments = max(1, min(MaxFragments, device.MaxFragments))
		}
	}
	// In copy mode the kernel does it if the device does not.
	s.tx.metadata = s.tx.metadata && (s.features.Mode != ZeroCopy || device.TxChecksum)
	s.features.TxChecksum = s.tx.metadata
	return nil
}

// inert is a ring without items, for a Socket that is closed.
func inert() indices {
	return indices{producer: new(atomic.Uint32), consumer: new(atomic.Uint32), flags: new(atomic.Uint32)}
}
