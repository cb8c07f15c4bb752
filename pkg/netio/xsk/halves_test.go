// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestReceivedFramesAreOrderedAndReused(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	into := make([]Desc, 8)
	for i := range 500 {
		if !f.deliver([]byte{byte(i), 1, 2}) {
			t.Fatalf("packet %d: no free frame", i)
		}
		n := s.Receive(into)
		if n != 1 || !bytes.Equal(s.Frame(into[0]), []byte{byte(i), 1, 2}) {
			t.Fatalf("packet %d: received %d: got % x, want % x", i, n, s.Frame(into[0]), []byte{byte(i), 1, 2})
		}
		s.Refill(into[:n])
	}
	checkFramesAre(t, s, Frames{RxKernel: 64, TxFree: 64})
}

func TestReceiveStopsWithoutFreeFrames(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	taken := 0
	for f.deliver([]byte{1}) {
		taken++
	}
	into := make([]Desc, 100)
	if n := s.Receive(into); taken != 64 || n != 64 {
		t.Errorf("got %d frames taken, %d received, want all 64", taken, n)
	}
	checkFramesAre(t, s, Frames{RxUser: 64, TxFree: 64})
	if s.Refill(into[:1]); !f.deliver([]byte{1}) {
		t.Error("a refilled frame is not reused")
	}
}

func TestSentFramesAreOrderedAndReused(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	batch := make([]Desc, 24)
	for round := range 100 {
		if n := s.Reserve(batch); n != len(batch) {
			t.Fatalf("round %d: got %d frames reserved, want %d", round, n, len(batch))
		}
		for i := range batch {
			batch[i].Len = uint32(copy(s.Frame(batch[i]), []byte{byte(round), byte(i)}))
		}
		if n := s.Submit(batch); n != len(batch) {
			t.Fatalf("round %d: got %d frames submitted, want %d", round, n, len(batch))
		}
		if err := s.WakeTx(); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range f.sent {
		if !bytes.Equal(p, []byte{byte(i / 24), byte(i % 24)}) {
			t.Fatalf("packet %d is % x", i, p)
		}
	}
	s.tx.reap()
	checkFramesAre(t, s, Frames{RxKernel: 64, TxFree: 64})
}

func TestReserveIsLimitedToFreeFrames(t *testing.T) {
	s := openFake(t, newFake(t), Config{})
	batch := make([]Desc, 100)
	if n := s.Reserve(batch); n != 64 {
		t.Errorf("reserved %d of 64", n)
	}
	if n := s.Reserve(batch[64:]); n != 0 {
		t.Errorf("reserved %d of none", n)
	}
	s.Release(batch[:64])
	if n := s.Reserve(batch); n != 64 {
		t.Errorf("reserved %d of 64 that were released", n)
	}
}

func TestFrameIsNilOutsideOfTheUMEM(t *testing.T) {
	s := openFake(t, newFake(t), Config{})
	for _, d := range []Desc{
		{Addr: 128 * 2048}, {Addr: ^uint64(0), Len: 1}, {Addr: 2047, Len: 2}, {Addr: 0, Len: 2049}, {Addr: 1, Len: ^uint32(0)},
	} {
		if b := s.Frame(d); b != nil {
			t.Errorf("%+v is %d bytes", d, len(b))
		}
	}
	if b := s.Frame(Desc{Addr: 2048 + 100, Len: 50}); len(b) != 50 || cap(b) != 1948 {
		t.Errorf("a frame of %d bytes with room for %d, want 50 and 1948", len(b), cap(b))
	}
}

// TestFrameNeverHasTwoOwners lets a caller make every mistake with frame addresses.
func TestFrameNeverHasTwoOwners(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	f.deliver([]byte{1})
	into := make([]Desc, 4)
	if s.Receive(into) != 1 {
		t.Fatal("nothing received")
	}
	received := into[0]
	f.rx.put(t, received) // an error of the kernel
	f.rx.put(t, Desc{Addr: 1 << 40, Len: 1})
	if n := s.Receive(into[1:]); n != 0 {
		t.Errorf("received %d frames that the kernel does not have", n)
	}
	s.Refill([]Desc{received, received}) // twice
	s.Refill([]Desc{{Addr: ^uint64(0)}, {Addr: 1 << 40}})
	s.Refill([]Desc{{Addr: 64 * 2048}}) // a frame of the other half
	if got := f.fill.pending(); got != 64 {
		t.Errorf("%d frames in the fill ring", got)
	}
	s.Reserve(into[:2])
	if n := s.Submit([]Desc{into[0], into[0], received, {Addr: ^uint64(0), Len: 1}}); n != 1 {
		t.Errorf("got %d frames submitted, want 1", n)
	}
	s.Release([]Desc{into[0], {Addr: 3}}) // already submitted, and a receive frame
	if n := s.Submit(into[1:2]); n != 1 {
		t.Error("a valid frame was rejected")
	}
	f.done.put(t, 0) // another error of the kernel
	f.done.put(t, into[0].Addr+1<<40)
	if err := s.WakeTx(); err != nil {
		t.Fatal(err)
	}
	if n := s.tx.reap(); n != 2 {
		t.Errorf("got %d frames reaped, want 2", n)
	}
	checkFramesAre(t, s, Frames{RxKernel: 64, TxFree: 64})
	stats, err := s.Stats()
	if err != nil || stats.FrameOwnershipErrors != 2+4+3+2+2 || stats.Rejected != 3 {
		t.Errorf("got stats %+v, error %v, want no error", stats, err)
	}
}

func TestSubmitRejectsInvalidPackets(t *testing.T) {
	tests := []struct {
		name string
		bad  func(d *Desc)
	}{
		{"an empty frame", func(d *Desc) { d.Len = 0 }},
		{"more than a frame", func(d *Desc) { d.Len++ }},
		{"a frame without headroom", func(d *Desc) { d.Addr-- }},
		{"unknown options", func(d *Desc) { d.Options = 1 << 7 }},
		{"one of several frames of a packet", func(d *Desc) { d.Options = 1 }}, // XDP_PKT_CONTD
		{"metadata without the feature", func(d *Desc) { d.Options = optionMetadata }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			s := openFake(t, f, Config{})
			d := make([]Desc, 32)
			reserved := d[:s.Reserve(d)]
			bad := reserved[0]
			test.bad(&bad)
			good := reserved[len(reserved)-1]
			good.Len = 1
			if n := s.Submit([]Desc{bad}); n != 0 {
				t.Errorf("submitted %d frames, want 0", n)
			}
			if n := s.Submit([]Desc{good}); n != 1 {
				t.Errorf("submitted %d valid frames, want 1", n)
			}
			s.Release(reserved)
			_ = s.WakeTx()
			s.tx.reap()
			checkFramesAre(t, s, Frames{RxKernel: 64, TxFree: 64})
			if stats, _ := s.Stats(); stats.Rejected == 0 {
				t.Error("the rejection was not counted")
			}
		})
	}
}

// TestChecksumRequestPrecedesFrame parses the request as struct xsk_tx_metadata.
func TestChecksumRequestPrecedesFrame(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{TxChecksum: true})
	if !s.Features().TxChecksum {
		t.Fatal("Features.TxChecksum is not set")
	}
	d := make([]Desc, 1)
	s.Reserve(d)
	d[0].Len = 42
	if s.OffloadChecksum(&d[0], 34, 7) || d[0].Options != 0 {
		t.Error("a checksum beyond the frame was accepted")
	}
	if !s.OffloadChecksum(&d[0], 34, 6) {
		t.Fatal("the request was rejected")
	}
	m := f.umem[d[0].Addr-24:]
	if binary.NativeEndian.Uint64(m) != 2 || binary.NativeEndian.Uint16(m[8:]) != 34 || binary.NativeEndian.Uint16(m[10:]) != 6 {
		t.Errorf("request % x", m[:24])
	}
	d[0].Len = 41 // it would block the TX ring
	if n := s.Submit(d); n != 0 {
		t.Error("a frame shorter than its request was accepted")
	}
}

// oracle maps each frame to its owner.
type oracle map[uint64]string

func (o oracle) move(t *testing.T, descs []Desc, from, to string) {
	t.Helper()
	for _, d := range descs {
		frame := d.Addr / 2048
		if o[frame] != from {
			t.Fatalf("frame %d goes from %s to %s, and is with %q", frame, from, to, o[frame])
		}
		o[frame] = to
	}
}

func (o oracle) count(who string) (n int) {
	for _, w := range o {
		if w == who {
			n++
		}
	}
	return n
}

// TestFrameOwnersMatchOracle makes random calls and compares the owners with a map.
func TestFrameOwnersMatchOracle(t *testing.T) {
	for seed := range uint64(10) {
		f := newFake(t)
		s := openFake(t, f, Config{})
		r := rand.New(rand.NewPCG(seed, 2))
		o := oracle{}
		for i := range uint64(64) {
			o[i], o[64+i] = "rx kernel", "free"
		}
		var received, reserved []Desc
		batch := make([]Desc, 80)
		for range 600 {
			switch r.IntN(8) {
			case 0:
				f.deliver([]byte{1, 2, 3})
			case 1:
				got := batch[:s.Receive(batch[:r.IntN(len(batch))])]
				o.move(t, got, "rx kernel", "rx user")
				received = append(received, got...)
			case 2:
				n := r.IntN(len(received) + 1)
				r.Shuffle(len(received), func(i, j int) { received[i], received[j] = received[j], received[i] })
				s.Refill(received[:n])
				o.move(t, received[:n], "rx user", "rx kernel")
				received = received[n:]
			case 3:
				reaped := s.tx.reap()
				free := o.count("sent")
				for frame, who := range o {
					if who == "sent" {
						o[frame] = "free"
					}
				}
				if reaped != free {
					t.Fatalf("reaped %d, sent %d", reaped, free)
				}
			case 4:
				want := r.IntN(o.count("free") + 1) // few enough not to reap
				got := batch[:s.Reserve(batch[:want])]
				if len(got) != want {
					t.Fatalf("got %d frames reserved, want %d", len(got), want)
				}
				o.move(t, got, "free", "tx user")
				reserved = append(reserved, got...)
			case 5:
				n := r.IntN(len(reserved) + 1)
				if got := s.Submit(reserved[:n]); got != n {
					t.Fatalf("submitted %d of %d", got, n)
				}
				o.move(t, reserved[:n], "tx user", "tx ring")
				reserved = reserved[n:]
			case 6:
				n := r.IntN(len(reserved) + 1)
				s.Release(reserved[:n])
				o.move(t, reserved[:n], "tx user", "free")
				reserved = reserved[n:]
			case 7:
				before := len(f.sent)
				var leaving []Desc
				for i, n := f.tx.consumer.Load(), r.IntN(20); n > 0 && i != f.tx.producer.Load(); i, n = i+1, n-1 {
					leaving = append(leaving, f.tx.items[int(i)%len(f.tx.items)])
				}
				f.transmit(len(leaving))
				o.move(t, leaving, "tx ring", "sent")
				if len(f.sent)-before != len(leaving) {
					t.Fatal("fault in the fake kernel")
				}
			}
			checkFramesAre(t, s, Frames{
				RxKernel: o.count("rx kernel"), RxUser: o.count("rx user"),
				TxFree: o.count("free"), TxUser: o.count("tx user"), TxKernel: o.count("tx ring") + o.count("sent"), TxDone: o.count("sent"),
			})
		}
		if stats, _ := s.Stats(); stats.FrameOwnershipErrors != 0 || stats.Rejected != 0 {
			t.Errorf("got stats %+v, want FrameOwnershipErrors 0, Rejected 0", stats)
		}
	}
}

// TestBothHalvesRunConcurrently runs both goroutines of a Socket and a simulated kernel for each, for the race
// detector.
func TestBothHalvesRunConcurrently(t *testing.T) {
	const total = 5_000
	f := newFake(t)
	s := openFake(t, f, Config{})
	var all sync.WaitGroup
	var sent atomic.Bool
	all.Go(func() { // the kernel, receiving
		for i := uint64(0); i < total; {
			if f.deliver(binary.NativeEndian.AppendUint64(nil, i)) {
				i++
			} else {
				runtime.Gosched()
			}
		}
	})
	all.Go(func() {
		into := make([]Desc, 16)
		for next := uint64(0); next < total; {
			n := s.Receive(into)
			if n == 0 {
				runtime.Gosched()
			}
			for _, d := range into[:n] {
				if got := binary.NativeEndian.Uint64(s.Frame(d)); got != next {
					t.Errorf("packet %d, want %d", got, next)
					return
				}
				next++
			}
			s.Refill(into[:n])
		}
	})
	all.Go(func() { // the kernel, sending
		for !sent.Load() || !f.tx.empty() {
			f.transmit(8)
			runtime.Gosched()
		}
	})
	all.Go(func() {
		defer sent.Store(true)
		batch := make([]Desc, 16)
		for next := uint64(0); next < total; {
			n := s.Reserve(batch[:min(16, total-next)])
			for i := range batch[:n] {
				binary.NativeEndian.PutUint64(s.Frame(batch[i]), next)
				batch[i].Len = 8
				next++
			}
			s.Submit(batch[:n])
			if n == 0 {
				runtime.Gosched()
			}
		}
	})
	all.Go(func() {
		for !sent.Load() {
			if _, err := s.Stats(); err != nil {
				t.Error(err)
			}
			runtime.Gosched()
		}
	})
	all.Wait()
	for i, p := range f.sent {
		if binary.NativeEndian.Uint64(p) != uint64(i) {
			t.Fatalf("packet %d is % x", i, p)
		}
	}
	s.tx.reap()
	checkFramesAre(t, s, Frames{RxKernel: 64, TxFree: 64})
}

func TestDataPathAllocatesNothing(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{TxChecksum: true})
	packet := make([]byte, 100)
	f.sent = make([][]byte, 0, 1<<20)
	batch := make([]Desc, 16)
	allocs := testing.AllocsPerRun(100, func() {
		for range 16 {
			f.deliver(packet)
		}
		n := s.Receive(batch)
		for _, d := range batch[:n] {
			s.Frame(d)[0]++
		}
		s.Refill(batch[:n])
		n = s.Reserve(batch)
		for i := range batch[:n] {
			s.OffloadChecksum(&batch[i], 34, 6)
		}
		s.Submit(batch[:n])
		for !f.tx.empty() {
			f.done.put(t, f.tx.pop().Addr)
		}
		s.tx.reap()
		if s.WakeTx() != nil || s.WakeRx() != nil || s.Pending() != 0 || s.FD() < 0 {
			t.Error("unexpected result")
		}
	})
	if allocs != 0 {
		t.Errorf("got %v allocations, want 0", allocs)
	}
}

func TestMethodsOfClosedSocketDoNothing(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{TxChecksum: true})
	batch := make([]Desc, 4)
	s.Reserve(batch)
	f.deliver([]byte{1})
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	s.Refill(batch)
	s.Release(batch)
	if s.Receive(batch) != 0 || s.Reserve(batch) != 0 || s.Submit(batch) != 0 || s.tx.reap() != 0 || s.Pending() != 0 {
		t.Error("Frames is not zero")
	}
	if s.Frame(batch[0]) != nil || s.OffloadChecksum(&batch[0], 0, 0) || s.FD() != -1 || s.Frames() != (Frames{}) {
		t.Error("Frame returned memory")
	}
	if s.WakeRx() == nil || s.WakeTx() == nil || s.Check() == nil {
		t.Error("Check returned nil")
	}
	if _, err := s.Stats(); err != nil {
		t.Error(err)
	}
}

func checkFramesAre(t *testing.T, s *Socket, want Frames) {
	t.Helper()
	if got := s.Frames(); got != want {
		t.Fatalf("frames %+v, want %+v", got, want)
	}
	if got := countOwners(s); got != want {
		t.Fatalf("the owners are %+v, want %+v", got, want)
	}
}

// countOwners computes Frames from the owners of all frames, while neither half is in use.
func countOwners(s *Socket) Frames {
	return Frames{
		RxKernel: s.rx.frames.count(kernel), RxUser: s.rx.frames.count(user),
		TxFree: s.tx.frames.count(free), TxUser: s.tx.frames.count(user), TxKernel: s.tx.frames.count(kernel),
		TxDone: int(s.tx.completion.pending()),
	}
}
