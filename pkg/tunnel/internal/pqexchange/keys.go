// SPDX-License-Identifier: Apache-2.0

package pqexchange

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
)

// minUnfit is the number of initiations of one attempt whose responses fit no key, so that the ring
// is erased. Two different keys of the two ends then share an id. Neither silence nor some forged
// responses may have this effect.
const minUnfit = 9

// Mark marks the timestamp of an initiation, and notes the key that it names. announces says that this
// side tells the peer that it is a ropewalk.
func (m *Machine) Mark(t noise.Timestamp, announces bool, now int64) noise.Timestamp {
	if m != nil {
		m.named, m.answered, m.initiatedAt = postquantum.Key{}, false, now
	}
	if !announces {
		return t
	}
	if m != nil {
		if id, ok := m.exchange.Ring.Signal(); ok {
			m.named = postquantum.Key{ID: id, Named: true}
			return t.Naming(id)
		}
	}
	return t.Signed()
}

// PresharedKey returns the preshared key of a handshake that names a key, and the key if this side
// has it. The caller wipes the former.
func (m *Machine) PresharedKey(named postquantum.Key, psk *noise.PresharedKey) (noise.PresharedKey, postquantum.Key) {
	if m != nil && named.Named {
		if mixed, ok := m.exchange.Ring.Effective(named.ID, psk); ok {
			defer clear(mixed[:])
			return mixed, named
		}
	}
	return *psk, postquantum.Key{}
}

// NamedBy returns the key that the timestamp of an initiation names, if this side has it, and whether
// the timestamp is a ropewalk's. known says that the peer is one. An unrounded clock names a key by
// chance, so a key that is not held proves nothing of a stranger.
func (m *Machine) NamedBy(t noise.Timestamp, psk *noise.PresharedKey, known bool) (key postquantum.Key, ropewalk bool) {
	id, named := t.Named()
	if !named {
		return key, t.IsSigned()
	}
	mixed, key := m.PresharedKey(postquantum.Key{ID: id, Named: true}, psk)
	clear(mixed[:])
	return key, key.Named || known || !m.Had().IsZero()
}

// Response is the result of the response to an initiation.
type Response struct {
	Keys     noise.Keys
	Key      postquantum.Key // of the session
	Fallback bool            // the peer did not have the key that was named
}

// ConsumeResponse derives the keys with the preshared key that the peer has used: of the key that was
// named, or of none.
func (m *Machine) ConsumeResponse(i *noise.Initiator, msg []byte, psk *noise.PresharedKey) (r Response, reason drop.Reason) {
	var named postquantum.Key
	if m != nil {
		named = m.named
	}
	mixed, held := m.PresharedKey(named, psk)
	defer clear(mixed[:])
	r.Keys, reason = i.ConsumeResponse(msg, &mixed, psk)
	switch {
	case reason != drop.None:
		if held.Named && !m.answered {
			m.answered = true
			m.unfit++
		}
	case r.Keys.Preshared == 0:
		r.Key = held
	}
	r.Fallback = named.Named && !r.Key.Named
	return r, reason
}

// Bind returns the part of a session that its exchange needs, and whether the session carries data.
func (m *Machine) Bind(keys *noise.Keys, key postquantum.Key) (s postquantum.Session, data bool) {
	if m != nil && key.Named {
		key.At = m.exchange.Ring.Use(key.ID)
	}
	s = postquantum.NewSession(keys, key)
	policy := m.Policy()
	if policy == config.PostQuantumOff {
		s.Wipe()
	}
	return s, key.Named || policy != config.PostQuantumRequired
}

// HandshakeComplete is called when there is a session.
func (m *Machine) HandshakeComplete() {
	if m != nil {
		m.unfit = 0
	}
}

// GiveUp is called after an attempt has ended without a session. It reports whether it has erased all
// keys: the responses fit none of them.
func (m *Machine) GiveUp() (erased bool) {
	if m == nil {
		return false
	}
	if erased = m.unfit >= minUnfit; erased {
		m.exchange.Ring.Erase()
	}
	m.unfit = 0
	return erased
}

// Keys returns the keys that exchanges have made. The caller clears them.
func (m *Machine) Keys() []postquantum.Entry {
	if m == nil {
		return nil
	}
	return m.exchange.Ring.Entries()
}

// Restore is the inverse of Keys and Had, for another process.
func (m *Machine) Restore(keys []postquantum.Entry, had time.Time) {
	if m == nil {
		return
	}
	m.exchange.Ring.Erase()
	if m.Policy() != config.PostQuantumOff {
		m.exchange.Ring.Restore(keys)
	}
	m.had = had
}
