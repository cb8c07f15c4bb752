// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"encoding/binary"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// maxSingleBytes bounds the bytes of single messages that wait, so that they stay in the cache.
const maxSingleBytes = 32 << 10

// singles are consecutive elements of one message each, all of one session, which GRO did not join. The cipher opens them in
// one run, at a fraction of the time. All else happens one by one in their order: the replay window, roaming, merging.
type singles struct {
	elements [session.MaxEach]element
	messages [session.MaxEach][]byte
	n, bytes int
	head     uint64 // the first eight bytes of each: type and receiver index
	session  *lane.Session
	keys     *session.Keypair
}

// collect keeps e for openSingles if it is one data message of a known session. It reports whether it did. Messages of another
// session are opened first.
func (r *Receiver) collect(e *element) bool {
	d, w := &e.Datagrams, &r.singles
	if d.Truncated || e.skip > 0 || d.SegSize > 0 && d.SegSize < d.N {
		return false
	}
	msg := d.Buf[:d.N]
	if kind, reason := wire.Classify(msg); reason != drop.None || kind != wire.TypeData {
		return false
	}
	if w.n > 0 && w.head != binary.LittleEndian.Uint64(msg) {
		r.openSingles()
	}
	if w.n == 0 && !r.beginSingles(msg) {
		return false
	}
	w.elements[w.n], w.messages[w.n] = *e, msg
	w.n++
	if w.bytes += len(msg); w.n == len(w.elements) || w.bytes >= maxSingleBytes {
		r.openSingles()
	}
	return true
}

// beginSingles looks up the session of a message. It returns false if there is none.
func (r *Receiver) beginSingles(msg []byte) bool {
	s, _ := r.lane.Shared.Sessions.Lookup(wire.ReceiverIndex(msg))
	if s == nil {
		return false
	}
	keys := s.Keys.Load()
	if keys == nil {
		return false
	}
	w := &r.singles
	w.session, w.keys, w.head, w.bytes = s, keys, binary.LittleEndian.Uint64(msg), 0
	return true
}

// openSingles opens the messages that collect has kept, and delivers them.
func (r *Receiver) openSingles() {
	w := &r.singles
	n, s, keys := w.n, w.session, w.keys
	if n == 0 {
		return
	}
	w.n, w.session, w.keys = 0, nil, nil // flush, which a delivery may call, finds none
	keys.DecryptEach(&r.scratch, r.now, w.messages[:n], r.opened[:n])
	for i := range n {
		e, msg, opened := &w.elements[i], w.messages[i], r.opened[i:i+1]
		keys.AcceptTrain(&r.scratch, msg, len(msg), opened)
		r.deliverOpened(s, keys, msg, len(msg), opened, 0, e)
	}
	for i := range n {
		r.release(&w.elements[i])
		w.messages[i] = nil
	}
	r.FlushIfFull()
}
