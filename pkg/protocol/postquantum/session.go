// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Key names the key of a Ring that a session was keyed with. The zero Key stands for a base
// session.
type Key struct {
	ID    uint16
	Named bool
	At    int64 // when its exchange was complete
}

// Session is the part of a session that its exchange needs. A session has one exchange at most, and its initiator is the offerer.
type Session struct {
	hidden
	exporter  noise.SessionKey // zero once the exchange has ended
	hash      [noise.KeySize]byte
	initiator bool
	spent     bool // the exchange was answered or has ended
	confirmed bool // both ends have the session
	key       Key
}

// NewSession returns the part of a session whose keys were just derived.
func NewSession(keys *noise.Keys, key Key) Session {
	return Session{exporter: keys.Exporter, hash: keys.Hash, initiator: keys.Initiator, key: key}
}

// Key returns the key that the session was keyed with.
func (s *Session) Key() Key { return s.key }

// Wipe overwrites the secret of the session: there will be no exchange in it any more.
func (s *Session) Wipe() { s.exporter, s.spent = noise.SessionKey{}, true }
