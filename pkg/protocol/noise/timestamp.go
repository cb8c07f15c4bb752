// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"bytes"
	"encoding/binary"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// tai64Epoch is the TAI64 label of 1970-01-01 00:00:00 UTC: 2^62, and the 10 s by which TAI was ahead of UTC. Leap
// seconds since are left out, as in all implementations.
const tai64Epoch = 1<<62 + 10

// Granule is the step of a Clock: 2^24 ns, 16.8 ms. Finer time is withheld, so that an initiation tells an observer
// with the responder's key little about our clock; stock implementations clear the same 24 bits.
const Granule = lowMask + 1

const lowMask = 1<<24 - 1

// Timestamp is a TAI64N label: 8 bytes of seconds and 4 of nanoseconds, big-endian (https://cr.yp.to/libtai/tai64.html).
// The zero Timestamp precedes every real one.
type Timestamp [wire.TimestampLen]byte

// NewTimestamp returns t's label, to the nanosecond.
func NewTimestamp(t time.Time) Timestamp {
	return makeTimestamp(tai64Epoch+uint64(t.Unix()), uint32(t.Nanosecond()))
}

// After reports whether t is strictly later than o.
func (t Timestamp) After(o Timestamp) bool { return bytes.Compare(t[:], o[:]) > 0 }

// IsZero reports whether t is the zero Timestamp.
func (t Timestamp) IsZero() bool { return t == Timestamp{} }

// LowBits returns the 24 bits that stock implementations clear.
func (t Timestamp) LowBits() uint32 { return binary.BigEndian.Uint32(t[8:]) & lowMask }

// WithLowBits returns t with the 24 bits that stock implementations clear set to the low bits of v. Timestamps of one
// Clock keep their order whatever these bits are.
func (t Timestamp) WithLowBits(v uint32) Timestamp {
	nanos := binary.BigEndian.Uint32(t[8:])
	binary.BigEndian.PutUint32(t[8:], nanos&^lowMask|v&lowMask)
	return t
}

// Clock turns the wall clock into the timestamps of one peer's initiations. Each is at least one
// Granule later than the one before, even when the wall clock stands or goes back. Use one per
// peer. A shared one would run ahead of the wall clock when there are many peers, and its
// timestamps would look old after a restart. The zero Clock is ready to use; it is safe for
// concurrent use.
type Clock struct {
	mu   sync.Mutex
	last Timestamp
}

// Now returns the next timestamp, at or shortly before wall where that is still possible.
func (c *Clock) Now(wall time.Time) Timestamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := NewTimestamp(wall).WithLowBits(0)
	if !t.After(c.last) {
		t = c.last.next()
	}
	c.last = t
	return t
}

// Resume makes all later timestamps come after t, which another Clock returned, even if the wall clock has gone back.
func (c *Clock) Resume(t Timestamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.last) {
		c.last = t.WithLowBits(0)
	}
}

// next returns the label one Granule after t.
func (t Timestamp) next() Timestamp {
	seconds, nanos := binary.BigEndian.Uint64(t[:]), binary.BigEndian.Uint32(t[8:])
	if nanos += Granule; nanos >= uint32(time.Second) {
		seconds, nanos = seconds+1, 0
	}
	return makeTimestamp(seconds, nanos)
}

func makeTimestamp(seconds uint64, nanos uint32) (t Timestamp) {
	binary.BigEndian.PutUint64(t[:], seconds)
	binary.BigEndian.PutUint32(t[8:], nanos)
	return t
}
