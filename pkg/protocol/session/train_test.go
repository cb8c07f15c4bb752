// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// plaintexts fills buf as l describes, with the message's number in each byte, and the rest with 0xff, and returns them padded.
func plaintexts(buf []byte, l Layout) [][]byte {
	for i := range buf {
		buf[i] = 0xff
	}
	var all [][]byte
	for i := range l.Segments {
		plain, padded := l.segment(i)
		want := make([]byte, padded)
		for j := range plain {
			want[j] = byte(i*7 + j)
		}
		copy(buf[i*l.Stride()+wire.DataHeaderLen:], want[:plain])
		all = append(all, want)
	}
	return all
}

// sealed returns a train of l from k, whose counters begin where k stands.
func sealed(tb testing.TB, k *Keypair, l Layout) (train []byte, plain [][]byte) {
	tb.Helper()
	buf := make([]byte, l.Size())
	plain = plaintexts(buf, l)
	first, ok := k.Reserve(l.Segments)
	if !ok {
		tb.Fatal("Reserve failed")
	}
	n := k.SealTrain(new(Scratch), buf, l, first)
	if n != len(buf) {
		tb.Fatalf("got %d bytes sealed, want %d", n, len(buf))
	}
	return buf[:n], plain
}

func open(k *Keypair, train []byte, segSize int) []Message {
	out := make([]Message, Messages(len(train), segSize))
	return out[:k.OpenTrain(new(Scratch), 0, train, segSize, out)]
}

func drops(out []Message) (reasons []drop.Reason) {
	for _, m := range out {
		reasons = append(reasons, m.Drop)
	}
	return reasons
}

var layouts = []Layout{
	NewLayout(1, 0, 0, 1420),      // a keepalive
	NewLayout(1, 1, 1, 1420),      // the smallest packet
	NewLayout(45, 1420, 1420, 0),  // a full train
	NewLayout(45, 1420, 61, 1420), // no padding at the MTU, a short tail
	NewLayout(64, 1420, 1, 1500),
	NewLayout(200, 16, 15, 1420), // more than one update of the window
	NewLayout(2, 100, 0, 1420),   // an empty last message
	NewLayout(1, 65487, 65487, 0),
}

func TestSealedTrainOpensToItsPlaintexts(t *testing.T) {
	for _, l := range layouts {
		a, b := newPair(t, 0)
		for range 3 {
			train, plain := sealed(t, a, l)
			out := open(b, train, l.Stride())
			if len(out) != l.Segments {
				t.Fatalf("layout %+v: got %d messages, want %d", l, len(out), l.Segments)
			}
			for i, m := range out {
				if m.Drop != drop.None || !bytes.Equal(m.Padded, plain[i]) {
					t.Fatalf("layout %+v, message %d: got drop reason %v, %d bytes, want none, %d", l, i, m.Drop, len(m.Padded), len(plain[i]))
				}
			}
		}
	}
}

// The oracle is the paper's §5.4.6, one message at a time.
func TestSealedTrainMatchesPaper(t *testing.T) {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	aead, err := chacha20poly1305.New(key)
	if err != nil {
		t.Fatal(err)
	}
	l := NewLayout(20, 1000, 77, 1420)
	a, _ := newPair(t, 0)
	a.next.Store(1<<40 + 250)
	train, plain := sealed(t, a, l)
	var want []byte
	for i, p := range plain {
		counter := 1<<40 + 250 + uint64(i)
		header := binary.LittleEndian.AppendUint32([]byte{4, 0, 0, 0}, 0x22222222)
		header = binary.LittleEndian.AppendUint64(header, counter)
		want = aead.Seal(append(want, header...), binary.LittleEndian.AppendUint64(make([]byte, 4), counter), p, nil)
	}
	if !bytes.Equal(train, want) {
		t.Error("the train differs from its messages sealed one by one")
	}
}

func TestSealTrainWritesOnlyItsBytes(t *testing.T) {
	l := NewLayout(3, 100, 50, 1420)
	a, _ := newPair(t, 0)
	buf := make([]byte, l.Size()+64)
	plaintexts(buf, l)
	a.SealTrain(new(Scratch), buf, l, 0)
	if !bytes.Equal(buf[l.Size():], bytes.Repeat([]byte{0xff}, 64)) {
		t.Error("SealTrain changed bytes behind the train")
	}
}

func TestSealTrainRejectsInvalidArguments(t *testing.T) {
	good := NewLayout(3, 100, 50, 1420)
	tests := []struct {
		name    string
		size    int
		l       Layout
		counter uint64
	}{
		{"a buffer one byte short", good.Size() - 1, good, 0},
		{"no buffer", 0, good, 0},
		{"no segments", 4096, NewLayout(0, 100, 50, 0), 0},
		{"negative segments", 4096, NewLayout(-1, 100, 50, 0), 0},
		{"too many segments", 4096, NewLayout(1<<30, 100, 50, 0), 0},
		{"negative plaintext", 4096, Layout{Segments: 2, Plain: -5, LastPlain: -5}, 0},
		{"a last message larger than the others", 4096, NewLayout(2, 100, 200, 0), 0},
		{"less room than plaintext", 4096, Layout{Segments: 1, Plain: 32, Padded: 32, LastPlain: 32, LastPadded: 16}, 0},
		{"a message larger than a datagram", 1 << 17, NewLayout(1, 65535, 65535, 0), 0},
		{"counters across Reject-After-Messages", 4096, good, RejectAfterMessages - 2},
		{"counters that wrap around", 4096, good, ^uint64(0)},
	}
	for _, tt := range tests {
		a, _ := newPair(t, 0)
		buf := bytes.Repeat([]byte{0xff}, tt.size)
		if n := a.SealTrain(new(Scratch), buf, tt.l, tt.counter); n != 0 {
			t.Errorf("%s: got %d bytes sealed, want 0", tt.name, n)
		}
		if len(bytes.Trim(buf, "\xff")) != 0 {
			t.Errorf("%s: SealTrain changed the buffer, want it unchanged", tt.name)
		}
	}
}

// TestFirstOfTwoEqualTrainsIsAccepted has them decrypted in any order, and accepted in that in which they came.
func TestFirstOfTwoEqualTrainsIsAccepted(t *testing.T) {
	l := NewLayout(70, 100, 60, 1420) // more than one chunk
	a, b := newPair(t, 0)
	first, plain := sealed(t, a, l)
	second := bytes.Clone(first)
	first[3*l.Stride()+20] ^= 1 // so that of this message the second counts
	out := [2][]Message{make([]Message, l.Segments), make([]Message, l.Segments)}
	s := new(Scratch)
	for _, i := range []int{1, 0} {
		if n := b.DecryptTrain(s, 0, [][]byte{first, second}[i], l.Stride(), out[i]); n != l.Segments {
			t.Fatalf("got %d messages decrypted, want %d", n, l.Segments)
		}
	}
	for i := range out {
		b.AcceptTrain(s, [][]byte{first, second}[i], l.Stride(), out[i])
	}
	for i := range plain {
		fresh, other, why := out[0][i], out[1][i], drop.RXReplay
		if i == 3 {
			fresh, other, why = other, fresh, drop.RXAuth
		}
		if fresh.Drop != drop.None || !bytes.Equal(fresh.Padded, plain[i]) || other.Drop != why || other.Padded != nil {
			t.Errorf("message %d: got drop reasons %v and %v, want %v for one and none for the other", i, out[0][i].Drop, out[1][i].Drop, why)
		}
	}
}

func TestOpenTrainReportsEachMessageSeparately(t *testing.T) {
	l := NewLayout(8, 64, 64, 1420)
	a, b := newPair(t, 0)
	train, _ := sealed(t, a, l)
	msg := func(i int) []byte { return train[i*l.Stride() : (i+1)*l.Stride()] }
	msg(1)[20] ^= 1                                       // ciphertext
	binary.LittleEndian.PutUint32(msg(2)[4:], 0x33333333) // another session's
	msg(3)[1] = 1                                         // reserved bits
	copy(msg(4), msg(0))                                  // a replay within the train
	binary.LittleEndian.PutUint64(msg(5)[8:], 1<<63)      // a counter that was not authenticated
	binary.LittleEndian.PutUint64(msg(6)[8:], ^uint64(0)) // beyond Reject-After-Messages
	train = train[:7*l.Stride()+wire.MinSize-1]           // a stump
	want := []drop.Reason{drop.None, drop.RXAuth, drop.RXUnknownIndex, drop.RXBadType, drop.RXReplay, drop.RXAuth, drop.RXExpired, drop.RXTooShort}
	out := open(b, train, l.Stride())
	for i, got := range drops(out) {
		if got != want[i] {
			t.Errorf("message %d: got drop reason %v, want %v", i, got, want[i])
		}
		if (out[i].Padded != nil) != (got == drop.None) {
			t.Errorf("message %d, drop reason %v: got plaintext %v, want it only without a drop reason", i, got, out[i].Padded != nil)
		}
	}
}

func TestOpenTrainDropsReplayedTrains(t *testing.T) {
	l := NewLayout(100, 64, 10, 1420)
	a, b := newPair(t, 0)
	train, _ := sealed(t, a, l)
	again := bytes.Clone(train)
	open(b, train, l.Stride())
	for i, got := range drops(open(b, again, l.Stride())) {
		if got != drop.RXReplay {
			t.Errorf("message %d: got drop reason %v, want %v", i, got, drop.RXReplay)
		}
	}
}

func TestForgedCountersDoNotMoveTheWindow(t *testing.T) {
	a, b := newPair(t, 0)
	l := NewLayout(1, 64, 64, 1420)
	genuine, _ := sealed(t, a, l)
	forged := bytes.Clone(genuine)
	binary.LittleEndian.PutUint64(forged[8:], 1<<50)
	if got := drops(open(b, forged, 0)); got[0] != drop.RXAuth {
		t.Fatalf("forged message: got drop reason %v, want %v", got[0], drop.RXAuth)
	}
	if got := drops(open(b, genuine, 0)); got[0] != drop.None {
		t.Errorf("genuine message after the forged one: got drop reason %v, want none", got[0])
	}
}

func TestRejectAfterMessagesIsEnforcedOnTheTransportCounter(t *testing.T) {
	for _, counter := range []uint64{RejectAfterMessages - 1, RejectAfterMessages, ^uint64(0)} {
		a, b := newPair(t, 0)
		msg := make([]byte, wire.KeepaliveSize)
		a.ciphers.Load().send.Seal(new(chachapoly.Scratch), []chachapoly.Message{a.message(msg, counter)})
		want := drop.RXExpired
		if counter < RejectAfterMessages {
			want = drop.None
		}
		if got := drops(open(b, msg, 0)); got[0] != want {
			t.Errorf("counter %d: got drop reason %v, want %v", counter, got[0], want)
		}
	}
}

func TestOpenTrainRejectsExpiredOrWipedSession(t *testing.T) {
	l := NewLayout(3, 64, 64, 1420)
	a, b := newPair(t, 0)
	train, _ := sealed(t, a, l)
	out := make([]Message, 3)
	if n := b.OpenTrain(new(Scratch), RejectAfterTime, bytes.Clone(train), l.Stride(), out); n != 3 || out[2].Drop != drop.RXExpired {
		t.Errorf("expired session: got %d messages, drop reason %v, want 3, %v", n, out[2].Drop, drop.RXExpired)
	}
	b.Wipe()
	if got := drops(open(b, train, l.Stride())); got[0] != drop.RXExpired {
		t.Errorf("wiped session: got drop reason %v, want %v", got[0], drop.RXExpired)
	}
	if n := b.SealTrain(new(Scratch), train, l, 0); n != 0 {
		t.Errorf("wiped session: got %d bytes sealed, want 0", n)
	}
}

func TestOpenTrainStopsAtEndOfOut(t *testing.T) {
	l := NewLayout(5, 64, 64, 1420)
	a, b := newPair(t, 0)
	train, _ := sealed(t, a, l)
	out := make([]Message, 2)
	if n := b.OpenTrain(new(Scratch), 0, train, l.Stride(), out); n != 2 || out[1].Drop != drop.None {
		t.Errorf("got %d messages, drop reason %v, want 2, none", n, out[1].Drop)
	}
}

func TestMessagesCountsPartialLastMessage(t *testing.T) {
	for _, tt := range []struct{ size, segSize, want int }{
		{0, 10, 0}, {-1, 10, 0}, {1, 10, 1}, {10, 10, 1}, {11, 10, 2}, {10, 0, 1}, {10, -3, 1}, {65535, 1, 65535},
	} {
		if got := Messages(tt.size, tt.segSize); got != tt.want {
			t.Errorf("Messages(%d, %d) = %d, want %d", tt.size, tt.segSize, got, tt.want)
		}
	}
}

// Copies of the same trains are opened by several workers at once while the session is finally wiped.
func TestConcurrentWorkersOpenEachMessageOnce(t *testing.T) {
	const workers, trains = 4, 200
	l := NewLayout(45, 32, 32, 1420)
	a, b := newPair(t, 0)
	wires := make([][]byte, trains)
	for i := range wires {
		wires[i], _ = sealed(t, a, l)
	}
	var opened atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for _, train := range wires {
				for _, m := range open(b, bytes.Clone(train), l.Stride()) {
					if m.Drop == drop.None {
						opened.Add(1)
					}
				}
			}
			b.Wipe()
		})
	}
	wg.Wait()
	if n := opened.Load(); n == 0 || n > trains*45 {
		t.Errorf("got %d messages opened, want 1 to %d", n, trains*45)
	}
}

func TestSealAndOpenAllocateNothing(t *testing.T) {
	l := NewLayout(45, 1420, 61, 1420)
	a, b := newPair(t, 0)
	sealing, opening := new(Scratch), new(Scratch)
	buf, out := make([]byte, l.Size()), make([]Message, 45)
	if n := testing.AllocsPerRun(50, func() {
		first, _ := a.Reserve(l.Segments)
		a.SealTrain(sealing, buf, l, first)
		b.OpenTrain(opening, 0, buf, l.Stride(), out)
	}); n != 0 {
		t.Errorf("got %v allocations per train, want 0", n)
	}
	if out[44].Drop != drop.None {
		t.Errorf("got drop reason %v, want none", out[44].Drop)
	}
}

func FuzzOpenTrain(f *testing.F) {
	a, _ := newPair(f, 0)
	train, _ := sealed(f, a, NewLayout(3, 40, 7, 1420))
	f.Add(train, 80)
	f.Add(train[:50], 0)
	f.Add([]byte{4, 0, 0, 0}, 1)
	f.Fuzz(func(t *testing.T, data []byte, segSize int) {
		_, b := newPair(t, 0)
		if want := Messages(len(data), segSize); want > 1<<16 {
			return
		}
		data = bytes.Clone(data)
		for _, m := range open(b, data, segSize) {
			if m.Drop != drop.None && m.Padded != nil {
				t.Errorf("got plaintext of a message with drop reason %v, want none", m.Drop)
			}
		}
	})
}

func FuzzLayout(f *testing.F) {
	f.Add(3, 100, 112, 50, 64, 400)
	f.Add(1, 0, 0, 0, 0, 32)
	f.Fuzz(func(t *testing.T, segments, plain, padded, lastPlain, lastPadded, size int) {
		a, _ := newPair(t, 0)
		l := Layout{Segments: segments, Plain: plain, Padded: padded, LastPlain: lastPlain, LastPadded: lastPadded}
		buf := make([]byte, min(max(size, 0), 1<<17))
		if n := a.SealTrain(new(Scratch), buf, l, 0); n != 0 && n != l.Size() {
			t.Errorf("layout %+v, buffer of %d bytes: got %d bytes sealed, want 0 or %d", l, len(buf), n, l.Size())
		}
	})
}

func TestRandomTrainsSurviveTheRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	a, b := newPair(t, 0)
	for range 300 {
		plain := r.IntN(1500)
		l := NewLayout(1+r.IntN(70), plain, r.IntN(plain+1), 1280+r.IntN(300))
		train, want := sealed(t, a, l)
		if len(train) != l.Size() {
			t.Fatalf("layout %+v: got %d bytes, want %d", l, len(train), l.Size())
		}
		for i, m := range open(b, train, l.Stride()) {
			if m.Drop != drop.None || !bytes.Equal(m.Padded, want[i]) {
				t.Fatalf("layout %+v, message %d: got drop reason %v or wrong plaintext", l, i, m.Drop)
			}
		}
	}
}

func TestSealEachMatchesSealTrain(t *testing.T) {
	const plain = 96
	a, b := newPair(t, 0)
	for _, count := range []int{0, 1, 2, chunkLen - 1, chunkLen, chunkLen + 1, 3*chunkLen + 5} {
		var msgs [][]byte
		var all []byte
		for i := range count {
			msg := make([]byte, wire.DataOverhead+plain)
			msg[wire.DataHeaderLen] = byte(i)
			msgs = append(msgs, msg)
		}
		counter, ok := a.Reserve(max(count, 1))
		if !ok || !a.SealEach(new(Scratch), msgs, counter) {
			t.Fatalf("SealEach of %d messages failed", count)
		}
		for _, msg := range msgs {
			all = append(all, msg...)
		}
		for i, m := range open(b, all, wire.DataOverhead+plain) {
			if m.Drop != drop.None || len(m.Padded) != plain || m.Padded[0] != byte(i) {
				t.Fatalf("message %d of %d: got drop reason %v or wrong plaintext", i, count, m.Drop)
			}
		}
	}
}

func TestSealEachRejectsInvalidArguments(t *testing.T) {
	good := func() []byte { return make([]byte, wire.DataOverhead+16) }
	for name, c := range map[string]struct {
		msgs    [][]byte
		counter uint64
	}{
		"too short":           {[][]byte{good(), make([]byte, wire.DataOverhead-1)}, 0},
		"too long":            {[][]byte{good(), make([]byte, maxMessage+1)}, 0},
		"counters that end":   {[][]byte{good(), good()}, RejectAfterMessages - 1},
		"counters that wrap":  {[][]byte{good(), good()}, ^uint64(0)},
		"counters at the end": {[][]byte{good()}, RejectAfterMessages},
	} {
		a, _ := newPair(t, 0)
		if a.SealEach(new(Scratch), c.msgs, c.counter) {
			t.Errorf("%s: SealEach = true, want false", name)
		}
		if !bytes.Equal(c.msgs[0], good()) {
			t.Errorf("%s: SealEach changed a message, want it unchanged", name)
		}
	}
	a, _ := newPair(t, 0)
	a.Wipe()
	if a.SealEach(new(Scratch), [][]byte{good()}, 0) {
		t.Error("SealEach of a wiped session = true, want false")
	}
}
