// SPDX-License-Identifier: Apache-2.0

package session

import (
	"reflect"
	"testing"
)

func TestStreamBudgetBoundsSessions(t *testing.T) {
	b := NewStreamBudget(2*sessionStreamBytes + 1)
	var keys []*Keypair
	for range 3 {
		_, k := newPair(t, 0)
		k.releaseStreams() // of the budget of newPair
		keys = append(keys, k)
	}
	announced := func(want ...bool) {
		t.Helper()
		for i, k := range keys {
			if got := k.AnnounceStreams(b); got != want[i] {
				t.Errorf("session %d: announced %v, want %v", i, got, want[i])
			}
		}
	}
	announced(true, true, false)
	announced(true, true, false)
	if n := b.Refused(); n != 1 {
		t.Errorf("%d sessions were refused, want 1", n)
	}
	keys[0].Wipe()
	keys[0].Wipe()
	keys[0], _ = newPair(t, 0)
	keys[0].releaseStreams()
	announced(true, true, false)
	keys[1].Wipe()
	announced(true, true, true) // a wiped session keeps nothing
	keys[0].Wipe()
	keys[2].Wipe()
	if left := b.left.Load(); left != 2*sessionStreamBytes+1 || b.Refused() != 1 {
		t.Errorf("%d bytes are left, %d sessions were refused", left, b.Refused())
	}
}

// TestStreamBudgetCountsAllMemory has the windows of a session that uses all that it may.
func TestStreamBudgetCountsAllMemory(t *testing.T) {
	a, b := newPair(t, 0)
	for range liveStreams {
		s, ok := a.OpenStream()
		if !ok {
			t.Fatal("no stream")
		}
		open1(t, a, b, s.next, s.next+tinyBlocks<<blockShift, s.next+smallBlocks<<blockShift)
		s.Close()
	}
	s := b.streams.Load()
	bytes := reflect.TypeOf(s).Elem().Size() + uintptr(cap(s.list))*reflect.TypeOf(s.list).Elem().Size()
	for _, l := range s.list {
		for _, part := range []any{l, l.window.small.Load(), l.window.ring.Load()} {
			bytes += reflect.TypeOf(part).Elem().Size()
		}
	}
	if bytes > sessionStreamBytes || bytes < sessionStreamBytes*99/100 {
		t.Errorf("the streams of a session take %d bytes, and count as %d", bytes, sessionStreamBytes)
	}
}
