// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

const t0 = int64(1e12)

// ringOf returns a ring with keys of these ids; those that are negative are uncertain.
func ringOf(ids ...int) *Ring {
	r := new(Ring)
	for _, id := range ids {
		r.add(Entry{Key: noise.PresharedKey{byte(max(id, -id))}, ID: uint16(max(id, -id)), Certain: id > 0, At: t0})
	}
	return r
}

// held returns the ids in a ring, oldest first.
func held(r *Ring) (ids []int) {
	for _, e := range r.Entries() {
		ids = append(ids, int(e.ID))
	}
	return ids
}

func assertHeld(t *testing.T, r *Ring, want ...int) {
	t.Helper()
	if got := held(r); !slices.Equal(got, want) {
		t.Errorf("the ring has keys %v, want %v", got, want)
	}
}

func TestSignalNamesTheNewestCertainKey(t *testing.T) {
	for _, tc := range []struct {
		ring []int
		want int
	}{
		{nil, -1}, {[]int{1}, 1}, {[]int{-1}, 1}, {[]int{1, 2}, 2}, {[]int{1, -2}, 1}, {[]int{-1, -2}, 2}, {[]int{-1, 2, -3, -4}, 2},
	} {
		id, ok := ringOf(tc.ring...).Signal()
		if got := int(id); ok != (tc.want >= 0) || ok && got != tc.want {
			t.Errorf("%v: got %d, %v, want %d", tc.ring, got, ok, tc.want)
		}
	}
}

func TestNinthKeyDisplacesOneThatIsNotNamed(t *testing.T) {
	r := ringOf(1, 2, 3, 4, 5, 6, 7, 8)
	r.add(Entry{ID: 9})
	assertHeld(t, r, 2, 3, 4, 5, 6, 7, 8, 9)
	r = ringOf(1, 2, 3, 4, 5, 6, 7, 8)
	r.Use(1) // the peer may name it
	r.add(Entry{ID: 9, Certain: true})
	assertHeld(t, r, 1, 3, 4, 5, 6, 7, 8, 9)
	r = ringOf(1, 2, 3, -4, -5, 6, 7, 8)
	r.add(Entry{ID: 9, Certain: true})
	assertHeld(t, r, 1, 2, 3, 5, 6, 7, 8, 9)
	r = ringOf(1, 2, -3, 4, 5, 6, 7, 8)
	r.Use(4)
	r.Confirm(4, t0)
	r.add(Entry{ID: 9, Certain: true})
	assertHeld(t, r, 2, 3, 4, 5, 6, 7, 8, 9)
	r = ringOf(1, -2, -3, -4, -5, -6, -7, -8) // the first is the only certain one
	r.add(Entry{ID: 9})
	assertHeld(t, r, 1, 3, 4, 5, 6, 7, 8, 9)
	if r.add(Entry{ID: 5}) {
		t.Error("a second key of an id is taken")
	}
	assertHeld(t, r, 1, 3, 4, 5, 6, 7, 8, 9)
}

func TestConfirmedKeyEndsOlderOnesLater(t *testing.T) {
	r := ringOf(1, -2, -3, -4)
	r.Confirm(3, t0)
	if id, _ := r.Signal(); id != 3 {
		t.Errorf("after the session with key 3 is confirmed: got signal %d, want 3", id)
	}
	if r.Next() != t0+session.RejectAfterTime {
		t.Errorf("older keys end %d ns later, want %d", r.Next()-t0, session.RejectAfterTime)
	}
	r.Expire(t0 + session.RejectAfterTime - 1)
	assertHeld(t, r, 1, 2, 3, 4)
	r.Confirm(3, t0+session.RejectAfterTime-1) // again: they end no later
	r.Confirm(99, t0)                          // none
	r.Expire(t0 + session.RejectAfterTime)
	assertHeld(t, r, 3, 4)
	if r.Next() != 0 {
		t.Errorf("a key ends at %d, want none", r.Next())
	}
}

func TestIdleErasesUsedKeysOnly(t *testing.T) {
	r := ringOf(1, 2, -3)
	if at := r.Use(2); at != t0 {
		t.Errorf("key 2 was made at %d, want %d", at, t0)
	}
	r.Use(99)
	r.EraseUsed()
	assertHeld(t, r, 1, 3)
	r.Erase()
	assertHeld(t, r)
}

func TestErasedKeysAreOverwritten(t *testing.T) {
	r := ringOf(1, 2, 3)
	memory := r.entries[:3:3]
	r.Use(2)
	r.EraseUsed()
	if memory[2] != (Entry{}) || memory[1].ID != 3 {
		t.Errorf("after one key is erased the memory has %v", memory)
	}
	r.Erase()
	for i, e := range memory {
		if e != (Entry{}) {
			t.Errorf("entry %d is not overwritten", i)
		}
	}
}

func TestRingDoesNotLeaveCopiesBehind(t *testing.T) {
	r := ringOf(1)
	first := &r.entries[0]
	for id := range 40 {
		r.add(Entry{ID: uint16(100 + id)})
	}
	if first != &r.entries[0] || len(r.entries) != MaxKeys {
		t.Errorf("the ring has moved, or has %d keys", len(r.entries))
	}
}

func TestEffectiveChangesNothing(t *testing.T) {
	r := ringOf(1, -2)
	before := r.Entries()
	psk := noise.PresharedKey{7}
	one, ok := r.Effective(1, &psk)
	two, ok2 := r.Effective(2, &psk)
	_, ok3 := r.Effective(3, &psk)
	if !ok || !ok2 || ok3 || one.Equal(two) || one.Equal(psk) {
		t.Errorf("got %v, %v, %v, want a key of its own for each id that is held", ok, ok2, ok3)
	}
	if !slices.Equal(r.Entries(), before) {
		t.Error("naming a key changed the ring")
	}
}

func TestRestoredRingIsTheSame(t *testing.T) {
	r := ringOf(1, -2, 3)
	r.Use(1)
	r.Confirm(3, t0)
	var other Ring
	if !other.Restore(r.Entries()) || !slices.Equal(other.Entries(), r.Entries()) {
		t.Error("the restored ring differs")
	}
	for name, bad := range map[string][]Entry{"nine": make([]Entry, 9), "an id twice": {{ID: 1}, {ID: 1}}} {
		if other.Restore(bad) {
			t.Errorf("%s: restored", name)
		}
	}
	assertHeld(t, &other, 1, 2, 3)
}

func TestSecretsAreNotPrinted(t *testing.T) {
	const leak = "167"
	e := Entry{ID: 9}
	for i := range e.Key {
		e.Key[i] = 167
	}
	r := new(Ring)
	r.add(e)
	x := &Exchange{Ring: *r}
	s := &Session{}
	for i := range s.exporter {
		s.exporter[i] = 167
	}
	for _, v := range []any{e, &e, []Entry{e}, r, *r, x, s, *s, map[string]*Session{"s": s}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%x", "%s", "%d"} {
			out := fmt.Sprintf(verb, v)
			if slices.ContainsFunc([]string{leak, "a7a7", "0xa7", "\xa7"}, func(s string) bool { return strings.Contains(out, s) }) {
				t.Errorf("%s of %T prints a secret: %s", verb, v, out)
			}
		}
	}
}
