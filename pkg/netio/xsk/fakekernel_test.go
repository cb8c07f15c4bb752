// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	fakeFD      = 1 << 20 // no descriptor of this process
	fakeFlags   = 68
	fakeItemsAt = 128
)

// fakeKernel simulates the kernel's ends of the rings, implemented independently from the documentation.
type fakeKernel struct {
	t       testing.TB
	sizes   map[int]int // by socket option
	reg     unix.XDPUmemReg
	umem    []byte
	mapped  map[int64][]byte
	live    int // mappings and descriptors
	zc      bool
	huge    bool
	refuses map[int]unix.Errno // options that it rejects
	binds   []uint16           // flags of each attempt
	onBind  func(flags uint16) error
	onSend  func() unix.Errno
	onRecv  func() unix.Errno
	device  Capabilities

	fill, done kernelRing[uint64]
	rx, tx     kernelRing[Desc]
	sent       [][]byte
}

// kernelRing is the kernel's end of a ring.
type kernelRing[T Desc | uint64] struct {
	indices
	items []T
}

func (r *kernelRing[T]) empty() bool { return r.producer.Load() == r.consumer.Load() }

func (r *kernelRing[T]) pop() T {
	at := r.consumer.Load()
	item := r.items[int(at)%len(r.items)]
	r.consumer.Store(at + 1)
	return item
}

func (r *kernelRing[T]) put(t testing.TB, item T) {
	at := r.producer.Load()
	if at-r.consumer.Load() == uint32(len(r.items)) {
		t.Error("a ring overflows")
		return
	}
	r.items[int(at)%len(r.items)] = item
	r.producer.Store(at + 1)
}

func newFake(t testing.TB) *fakeKernel {
	return &fakeKernel{t: t, sizes: map[int]int{}, mapped: map[int64][]byte{}, refuses: map[int]unix.Errno{}}
}

func (f *fakeKernel) socket() (int, error) { f.live++; return fakeFD, nil }

func (f *fakeKernel) close(int) error { f.live--; return nil }

func (f *fakeKernel) mmap(fd int, offset int64, length, flags int) ([]byte, error) {
	if flags&unix.MAP_HUGETLB != 0 && !f.huge {
		return nil, unix.ENOMEM
	}
	f.live++
	mem := make([]byte, length)
	if fd == -1 {
		f.umem = mem
	} else {
		f.mapped[offset] = mem
	}
	return mem, nil
}

func (f *fakeKernel) munmap(mem []byte) error {
	clear(mem) // stale readers see zeros
	f.live--
	return nil
}

func (f *fakeKernel) madvise([]byte, int) error { return nil }

func (f *fakeKernel) setInt(_, _, option, value int) error {
	if errno := f.refuses[option]; errno != 0 {
		return errno
	}
	f.sizes[option] = value
	return nil
}

func (f *fakeKernel) setBytes(_, _, option int, value []byte) error {
	f.reg.Flags = binary.NativeEndian.Uint32(value[24:])
	if f.reg.Flags != 0 && f.refuses[option] != 0 {
		return f.refuses[option]
	}
	f.reg.Len = binary.NativeEndian.Uint64(value[8:])
	f.reg.Size = binary.NativeEndian.Uint32(value[16:])
	return nil
}

func (f *fakeKernel) getBytes(_, _, option int, value []byte) (int, error) {
	clear(value)
	switch option {
	case unix.XDP_MMAP_OFFSETS:
		at := unix.XDPRingOffset{Producer: 0, Consumer: 64, Flags: fakeFlags, Desc: fakeItemsAt}
		copy(value, bytesOf(&unix.XDPMmapOffsets{Rx: at, Tx: at, Fr: at, Cr: at}))
	case unix.XDP_OPTIONS:
		if f.zc {
			value[0] = 1
		}
	}
	return len(value), nil
}

func (f *fakeKernel) bind(_ int, address *unix.SockaddrXDP) error {
	f.binds = append(f.binds, address.Flags)
	if f.onBind != nil {
		if err := f.onBind(address.Flags); err != nil {
			return err
		}
	}
	f.rx = fakeRing[Desc](f, unix.XDP_PGOFF_RX_RING, unix.XDP_RX_RING)
	f.tx = fakeRing[Desc](f, unix.XDP_PGOFF_TX_RING, unix.XDP_TX_RING)
	f.fill = fakeRing[uint64](f, unix.XDP_UMEM_PGOFF_FILL_RING, unix.XDP_UMEM_FILL_RING)
	f.done = fakeRing[uint64](f, unix.XDP_UMEM_PGOFF_COMPLETION_RING, unix.XDP_UMEM_COMPLETION_RING)
	f.tx.flags.Store(flagNeedWakeup)
	return nil
}

func fakeRing[T Desc | uint64](f *fakeKernel, offset int64, option int) kernelRing[T] {
	at := unix.XDPRingOffset{Producer: 0, Consumer: 64, Flags: fakeFlags, Desc: fakeItemsAt}
	x, items, err := ringView[T](f.mapped[offset], &at, f.sizes[option])
	if err != nil {
		f.t.Error(err)
	}
	return kernelRing[T]{indices: x, items: items}
}

func (f *fakeKernel) send(int) unix.Errno {
	if f.onSend != nil {
		return f.onSend()
	}
	f.transmit(1 << 30)
	return 0
}

func (f *fakeKernel) receive(int) unix.Errno {
	if f.onRecv != nil {
		return f.onRecv()
	}
	return 0
}

func (f *fakeKernel) probe(int) (Capabilities, error) { return f.device, nil }

// deliver simulates the arrival of a packet.
func (f *fakeKernel) deliver(packet []byte) bool {
	if f.fill.empty() {
		return false
	}
	addr := f.fill.pop() + RxHeadroom
	copy(f.umem[addr:], packet)
	f.rx.put(f.t, Desc{Addr: addr, Len: uint32(len(packet))})
	return true
}

// transmit sends at most n frames.
func (f *fakeKernel) transmit(n int) {
	for ; n > 0 && !f.tx.empty(); n-- {
		d := f.tx.pop()
		f.sent = append(f.sent, append([]byte(nil), f.umem[d.Addr:d.Addr+uint64(d.Len)]...))
		f.done.put(f.t, d.Addr)
	}
}

// openFake opens a Socket with 64 frames in each direction.
func openFake(t testing.TB, f *fakeKernel, c Config) *Socket {
	t.Helper()
	s, err := open(smallConfig(c), f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if f.live != 0 {
			t.Errorf("%d mappings and descriptors leaked", f.live)
		}
	})
	return s
}

// smallConfig fills in the common parameters of tests with a fakeKernel.
func smallConfig(c Config) Config {
	c.Interface = 1
	if c.RxFrames == 0 {
		c.RxFrames = 64
	}
	if c.TxFrames == 0 {
		c.TxFrames = 64
	}
	return c
}

// count returns the number of frames with that owner.
func (o *frameOwners) count(who owner) (n int) {
	for _, have := range o.owners {
		if have == who {
			n++
		}
	}
	return n
}
