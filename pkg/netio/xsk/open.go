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

// Open opens a Socket on a queue of a device in the network namespace of the calling thread. It receives once the
// caller has put its FD into the map of an XDP program; it can send at once.
//
// Errors: ErrBusy while the queue is in use: the kernel releases it some time after its last Socket was closed; ErrNoQueue; ErrGone for a missing device;
// ErrDown; os.ErrPermission without CAP_NET_RAW; errors.ErrUnsupported if the kernel has no AF_XDP, or the device
// does not support the required ZeroCopy; ENOBUFS when the limit of locked memory is too low. A failed Open leaks
// nothing.
func Open(c Config) (*Socket, error) { return open(c, linuxSystem{}) }

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
	if s.umem, err = mapUMEM(s.sys, length); err != nil {
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
	s.assignFrames(c)
	s.setOptions(c)
	if err := s.bind(c); err != nil {
		return err
	}
	return s.queryFeatures(c)
}

// mapRings creates and maps the four rings, each with an entry for every frame that can be in it.
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
			return fmt.Errorf("creating a ring of %d entries: %w", r.size, err)
		}
	}
	bytes := bytesOf(&at)
	n, err := s.sys.getBytes(s.fd, unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, bytes)
	if err != nil {
		return fmt.Errorf("querying the ring offsets: %w", err)
	}
	if n != len(bytes) { // before Linux 5.4, without ring flags
		return fmt.Errorf("querying the ring offsets: %w", errors.ErrUnsupported)
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
	const maxOffset = 1 << 20 // a plausible bound: the items follow the indices
	if at.Desc > maxOffset {
		return indices{}, nil, errBadOffsets
	}
	mem, err := s.sys.mmap(s.fd, offset, ringMappingLen[T](at, n), unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return indices{}, nil, fmt.Errorf("mapping a ring: %w", err)
	}
	s.rings = append(s.rings, mem)
	return ringView[T](mem, at, n)
}

// assignFrames divides the frames: the first for receiving, the others for sending.
func (s *Socket) assignFrames(c *Config) {
	shift := uint(bits.TrailingZeros(uint(c.FrameSize)))
	s.rx.frames = frameOwners{shift: shift, owners: make([]owner, c.RxFrames)}
	s.tx.frames = frameOwners{first: uint64(c.RxFrames) << shift, shift: shift, owners: make([]owner, c.TxFrames)}
	s.tx.free = make([]uint64, 0, c.TxFrames)
	s.tx.limit, s.tx.umem = s.size, s.frames
	s.rx.start()
	s.tx.start()
}

// setOptions sets the optional performance settings that the kernel supports.
func (s *Socket) setOptions(c *Config) {
	// One system call of WakeTx then sends all frames in copy mode; before Linux 6.17 it sends 32 (TX_BATCH_SIZE).
	_ = s.sys.setInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, c.TxFrames)
	// In copy mode the send buffer also limits the frames in flight, by default to 90 full frames.
	sndbuf := c.TxFrames * c.FrameSize // the kernel doubles it
	if s.sys.setInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sndbuf) != nil {
		_ = s.sys.setInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sndbuf)
	}
}

// queryFeatures reads the mode of the bound socket and derives its features.
func (s *Socket) queryFeatures(c *Config) error {
	var options [4]byte
	if _, err := s.sys.getBytes(s.fd, unix.SOL_XDP, unix.XDP_OPTIONS, options[:]); err != nil {
		return fmt.Errorf("querying the mode: %w", err)
	}
	s.features.Mode = Copy    // in which the kernel computes the checksum if the device does not
	if options != [4]byte{} { // XDP_OPTIONS_ZEROCOPY is the only bit defined
		device, _ := s.sys.probe(c.Interface) // unknown before Linux 6.3: assume no capabilities
		s.features.Mode, s.tx.metadata = ZeroCopy, s.tx.metadata && device.TxChecksum
	}
	s.features.TxChecksum = s.tx.metadata
	return nil
}

// emptyIndices returns the indices of a ring without items, for a closed Socket.
func emptyIndices() indices {
	return indices{producer: new(atomic.Uint32), consumer: new(atomic.Uint32), flags: new(atomic.Uint32)}
}
