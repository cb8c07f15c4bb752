// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

func TestStreamsShareNoCounter(t *testing.T) {
	a, _ := newPair(t, 0)
	seen := map[uint64]bool{}
	note := func(first uint64, ok bool) {
		if !ok {
			t.Fatal("no counters")
		}
		for c := first; c < first+3; c++ {
			if seen[c] {
				t.Fatalf("counter %x twice", c)
			}
			seen[c] = true
		}
	}
	var open []Stream
	for range MaxOpenStreams {
		s, ok := a.OpenStream()
		if !ok {
			t.Fatal("no stream")
		}
		open = append(open, s)
	}
	if _, ok := a.OpenStream(); ok {
		t.Error("more streams than MaxOpenStreams at once")
	}
	for range 3 {
		for i := range open {
			note(open[i].Reserve(3))
			note(a.Reserve(3))
		}
	}
	for i := range open {
		open[i].Close()
	}
	s, ok := a.OpenStream()
	note(s.Reserve(3))
	if !ok || !IsStream(s.next) {
		t.Errorf("stream at %x, %v", s.next, ok)
	}
}

func TestSessionHasMaxStreams(t *testing.T) {
	a, _ := newPair(t, 0)
	for i := range MaxStreams + 10 {
		s, ok := a.OpenStream()
		if ok != (i < MaxStreams) {
			t.Fatalf("stream %d: %v", i, ok)
		}
		s.Close()
		s.Close() // does nothing
	}
}

func TestStreamReservesUpToItsEnd(t *testing.T) {
	a, _ := newPair(t, 0)
	s, _ := a.OpenStream()
	s.next = s.end - 4
	if _, ok := s.Reserve(5); ok {
		t.Error("counters of the next stream")
	}
	if c, ok := s.Reserve(4); !ok || !IsStream(c+3) {
		t.Errorf("counter %x, %v", c, ok)
	}
}

// open1 opens a message with a counter and no content, and returns the reason for which it was dropped.
func open1(t *testing.T, from, to *Keypair, counters ...uint64) (reasons []drop.Reason) {
	t.Helper()
	var s Scratch
	var buf []byte
	for _, c := range counters {
		msg := make([]byte, wire.DataOverhead)
		if !from.SealEach(&s, [][]byte{msg}, c) {
			t.Fatalf("counter %x cannot be sealed", c)
		}
		buf = append(buf, msg...)
	}
	out := make([]Message, len(counters))
	to.OpenTrain(&s, to.Created(), buf, wire.DataOverhead, out)
	for i := range out {
		reasons = append(reasons, out[i].Drop)
	}
	return reasons
}

func TestMessagesOfStreamsAreAcceptedOnce(t *testing.T) {
	a, b := newPair(t, 0)
	s, _ := a.OpenStream()
	other, _ := a.OpenStream()
	train := []uint64{5, s.next + 7, s.next + 7, other.next + 7, 5, 6, s.next, other.next + 7, 7}
	want := []drop.Reason{0, 0, drop.RXReplay, 0, drop.RXReplay, 0, 0, drop.RXReplay, 0}
	for i, got := range open1(t, a, b, train...) {
		if got != want[i] {
			t.Errorf("message %d, counter %x: %v, want %v", i, train[i], got, want[i])
		}
	}
	for _, got := range open1(t, a, b, train...) {
		if got != drop.RXReplay {
			t.Errorf("the same train again: %v", got)
		}
	}
	if !b.Received() || !b.HasStreams() {
		t.Error("the session counts as unused")
	}
}

func TestMessageOfStreamMakesSessionUsed(t *testing.T) {
	a, b := newPair(t, 0)
	if s, _ := a.OpenStream(); b.Received() || open1(t, a, b, s.next)[0] != drop.None || !b.Received() {
		t.Error("the session does not count as used from the first message on")
	}
}

// TestStreamsLeaveOrdinaryWindowAlone: their counters are larger than all others.
func TestStreamsLeaveOrdinaryWindowAlone(t *testing.T) {
	a, b := newPair(t, 0)
	s, _ := a.OpenStream()
	if r := open1(t, a, b, s.next+1<<20, 3); r[0] != drop.None || r[1] != drop.None {
		t.Errorf("dropped: %v", r)
	}
	if !b.Newest(3) || b.Newest(s.next) || !b.Newest(s.next+1<<20) {
		t.Errorf("newest: %v, %v, %v", b.Newest(3), b.Newest(s.next), b.Newest(s.next+1<<20))
	}
}

// TestPeerCannotExhaustStreams: a session keeps few windows, and a stream without one accepts nothing.
func TestPeerCannotExhaustStreams(t *testing.T) {
	a, b := newPair(t, 0)
	first := func(n uint64) uint64 { return streamBit | n<<streamShift }
	for n := range uint64(MaxStreams) {
		if r := open1(t, a, b, first(n)); r[0] != drop.None {
			t.Fatalf("stream %d: %v", n, r)
		}
	}
	if n := len(b.streams.Load().list); n != liveStreams {
		t.Errorf("%d windows", n)
	}
	for _, n := range []uint64{0, MaxStreams - liveStreams - 1, MaxStreams, 1<<30 - 1} {
		if r := open1(t, a, b, first(n)+1); r[0] != drop.RXReplay {
			t.Errorf("stream %d: %v, want a drop", n, r)
		}
	}
	if r := open1(t, a, b, first(MaxStreams-1)+1); r[0] != drop.None {
		t.Errorf("the last stream: %v", r)
	}
}

func TestStreamIsInOrderOnOneLaneOnly(t *testing.T) {
	a, b := newPair(t, 0)
	s, _ := a.OpenStream()
	open1(t, a, b, s.next)
	for i, want := range []bool{true, true, false, false, false} {
		if lane := []int{3, 3, 0, 3, 0}[i]; b.ClaimStream(0, lane) != want {
			t.Errorf("claim %d, of lane %d: got %v", i, lane, !want)
		}
	}
	if b.ClaimStream(1, 3) {
		t.Error("a stream without messages has an owner")
	}
}

// TestStreamsNeedAgreement: a peer without streams would reject all ordinary messages after one of a stream.
func TestStreamsNeedAgreement(t *testing.T) {
	a, b := newPair(t, 0)
	a.AgreeStreams(false)
	if _, ok := a.OpenStream(); ok {
		t.Error("a stream to a peer that has announced none")
	}
	b.releaseStreams()
	if got := open1(t, a, b, streamBit, 5, 6); !slices.Equal(got, []drop.Reason{drop.RXReplay, drop.None, drop.None}) {
		t.Errorf("messages of a stream without agreement, and after it: %v", got)
	}
	if b.HasStreams() {
		t.Error("they have a replay window")
	}
}

func TestOnlyReservedCountersCountAsSent(t *testing.T) {
	a, _ := newPair(t, 0)
	first, ok := a.Reserve(2)
	s, opened := a.OpenStream()
	if !ok || !opened {
		t.Fatal("no counters")
	}
	for counter, want := range map[uint64]bool{
		first: true, first + 1: true, first + 2: false, s.next: true, s.next + 1<<streamShift: false, 1 << 63: false,
	} {
		if got := a.HasSent(counter); got != want {
			t.Errorf("counter %#x: got %v", counter, got)
		}
	}
}
