// SPDX-License-Identifier: Apache-2.0

package pqexchange

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// maxParts is the number of parts from a peer that wait for a worker, and that are accepted in a
// second.
const maxParts = 16

// Part is a part of an exchange on its way from a lane to a worker.
type Part struct {
	Keys *session.Keypair // under which it has arrived
	part wire.KEMPart     // with data of its own
}

// partQueue takes parts from lanes, in order. It has a lock of its own.
type partQueue struct {
	rate pace.Rate
	mu   sync.Mutex
	list []Part
}

// equal reports whether the same part has arrived twice.
func (p *Part) equal(o *Part) bool {
	return p.Keys == o.Keys && p.part.Kind == o.part.Kind && p.part.Part == o.part.Part && bytes.Equal(p.part.Data, o.part.Data)
}

// put appends a part, unless it waits already or the queue is full. An offerer repeats its parts
// while the answerer has no time for them.
func (q *partQueue) put(m Part) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.list {
		if q.list[i].equal(&m) {
			return true
		}
	}
	if len(q.list) >= maxParts {
		return false
	}
	q.list = append(q.list, m)
	return true
}

// Put copies a part that has arrived under keys. Lanes call it without a lock.
func (m *Machine) Put(plain []byte, keys *session.Keypair, now int64) drop.Reason {
	if m.Policy() == config.PostQuantumOff || !m.parts.rate.AllowUpTo(maxParts, now, time.Second) {
		return drop.ExchangeUnwanted
	}
	next := Part{Keys: keys}
	switch err := wire.ParseKEMPart(plain, &next.part); {
	case errors.Is(err, wire.ErrKEMVersion):
		return drop.ExchangeVersion
	case err != nil:
		return drop.ExchangeInvalid
	}
	next.part.Data = bytes.Clone(next.part.Data)
	if !m.parts.put(next) {
		return drop.ExchangeUnwanted
	}
	return drop.None
}

// Take returns the parts that have arrived, and forgets them. It needs no lock.
func (m *Machine) Take() []Part {
	if m == nil {
		return nil
	}
	q := &m.parts
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.list
	q.list = nil
	return list
}
