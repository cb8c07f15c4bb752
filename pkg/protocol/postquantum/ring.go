// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// MaxKeys is the number of keys that a Ring holds. Fewer do not suffice when handshakes cross and messages are lost: with 4, ends fall back to base
// handshakes without need.
const MaxKeys = 8

// Ring is the keys that exchanges with one peer have made, oldest first. No two have the same id. The zero Ring is empty.
type Ring struct {
	hidden
	entries []Entry
}

// Entry is a key of a Ring.
type Entry struct {
	Key     noise.PresharedKey
	ID      uint16
	At      int64 // when the exchange was complete
	Certain bool  // the peer also has it
	Used    bool  // a session was keyed with it
	Ends    int64 // when it is erased, 0 for not yet: a later one is in use
}

// Format prints the id: the key is a secret.
func (e Entry) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "key %04x", e.ID) }

// LogValue logs the id.
func (e Entry) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(e)) }

// Signal returns the id that an initiation names: the id of the newest certain key, else of the
// newest key. It returns false if there is none.
func (r *Ring) Signal() (id uint16, ok bool) {
	for i := len(r.entries) - 1; i >= 0; i-- {
		if r.entries[i].Certain {
			return r.entries[i].ID, true
		}
	}
	if n := len(r.entries); n > 0 {
		return r.entries[n-1].ID, true
	}
	return 0, false
}

// Effective returns the preshared key of a handshake that names an id, made of the configured one and the key of this id. It returns false if the
// ring has none. It changes nothing: a replayed initiation has no effect.
func (r *Ring) Effective(id uint16, psk *noise.PresharedKey) (noise.PresharedKey, bool) {
	if e := r.find(id); e != nil {
		mixed := effective(psk, &e.Key)
		defer clear(mixed[:])
		return mixed, true
	}
	return noise.PresharedKey{}, false
}

// Use records that the keys of a session were derived from a key, and returns when its exchange was complete.
func (r *Ring) Use(id uint16) (at int64) {
	if e := r.find(id); e != nil {
		e.Used, at = true, e.At
	}
	return at
}

// Confirm records that both ends have a session that was keyed with a key. Older keys end when the sessions that they have keyed do.
func (r *Ring) Confirm(id uint16, now int64) {
	i := slices.IndexFunc(r.entries, func(e Entry) bool { return e.ID == id })
	if i < 0 {
		return
	}
	r.entries[i].Certain = true
	for j := range r.entries[:i] {
		if r.entries[j].Ends == 0 {
			r.entries[j].Ends = now + session.RejectAfterTime
		}
	}
}

// add appends a key, and erases one if there are too many. It returns false if the id is taken.
func (r *Ring) add(e Entry) bool {
	if r.find(e.ID) != nil {
		return false
	}
	if cap(r.entries) == 0 {
		r.entries = make([]Entry, 0, MaxKeys+1) // never grown: that would leave a copy behind
	}
	r.entries = append(r.entries, e)
	if len(r.entries) > MaxKeys {
		r.erase(r.excess())
	}
	return true
}

// excess returns the index of the key to erase: the oldest that ends anyway, else the oldest
// uncertain one, else the oldest. Three keys stay: the newest key, the key that Signal names, and
// the key that the peer may name. The last is the newest certain key that has keyed a session.
// Uncertain keys pile up at an answerer whose ciphertexts are lost.
func (r *Ring) excess() int {
	named, _ := r.Signal()
	inUse := named
	for _, e := range r.entries {
		if e.Certain && e.Used {
			inUse = e.ID
		}
	}
	for _, candidate := range []func(Entry) bool{
		func(e Entry) bool { return e.Ends != 0 },
		func(e Entry) bool { return !e.Certain },
		func(Entry) bool { return true },
	} {
		for i, e := range r.entries[:len(r.entries)-1] {
			if e.ID != named && e.ID != inUse && candidate(e) {
				return i
			}
		}
	}
	return 0
}

// Expire erases the keys that have ended.
func (r *Ring) Expire(now int64) {
	r.eraseIf(func(e *Entry) bool { return e.Ends != 0 && e.Ends <= now })
}

// Next returns when Expire is due, 0 for never.
func (r *Ring) Next() (at int64) {
	for i := range r.entries {
		if ends := r.entries[i].Ends; ends != 0 && (at == 0 || ends < at) {
			at = ends
		}
	}
	return at
}

// EraseUsed erases the keys that have keyed sessions. The others stay for the next handshake, also after hours.
func (r *Ring) EraseUsed() { r.eraseIf(func(e *Entry) bool { return e.Used }) }

// Erase erases all keys.
func (r *Ring) Erase() { r.eraseIf(func(*Entry) bool { return true }) }

// Entries returns a copy of all keys, for a handover.
func (r *Ring) Entries() []Entry { return slices.Clone(r.entries) }

// Restore replaces the keys by the entries that Entries returned in another process. It returns
// false, and does nothing, if no Ring can have them.
func (r *Ring) Restore(entries []Entry) bool {
	if !ValidEntries(entries) {
		return false
	}
	r.Erase()
	for i := range entries {
		r.add(entries[i])
	}
	return true
}

// ValidEntries reports whether a Ring can have these keys.
func ValidEntries(entries []Entry) bool {
	ids := map[uint16]bool{}
	for i := range entries {
		ids[entries[i].ID] = true
	}
	return len(entries) <= MaxKeys && len(ids) == len(entries)
}

func (r *Ring) find(id uint16) *Entry {
	for i := range r.entries {
		if r.entries[i].ID == id {
			return &r.entries[i]
		}
	}
	return nil
}

func (r *Ring) eraseIf(f func(*Entry) bool) {
	for i := len(r.entries) - 1; i >= 0; i-- {
		if f(&r.entries[i]) {
			r.erase(i)
		}
	}
}

// erase erases one key. slices.Delete overwrites what it has moved.
func (r *Ring) erase(i int) { r.entries = slices.Delete(r.entries, i, i+1) }

// hidden, embedded, makes a struct that holds secrets print as a placeholder.
type hidden struct{}

func (hidden) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(hidden)") }

// LogValue logs a placeholder.
func (hidden) LogValue() slog.Value { return slog.StringValue("(hidden)") }
