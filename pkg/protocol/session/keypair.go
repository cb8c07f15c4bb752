// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// MaxReserve is the largest number of counters that one Reserve returns.
const MaxReserve = 1 << 16

// casFrom is the counter from which Reserve uses compare-and-swap. Below it a plain add cannot exceed the limit: that
// would take 2^16 goroutines that each reserve MaxReserve between their load and their add.
const casFrom = RejectAfterMessages - 1<<32

// Keypair is one established session: a cipher and counters for each direction. All methods may be called by any
// number of goroutines at once.
type Keypair struct {
	ciphers   atomic.Pointer[ciphers] // nil once wiped
	created   int64
	local     uint32
	remote    uint32
	initiator bool
	// restricted is set before other goroutines know the key pair.
	restricted bool

	_    [8]uint64 // padding: sending lanes write next, all lanes read the fields above
	next atomic.Uint64
	_    [8]uint64

	window Window

	// Sprayed flows: see stream.go.
	announced               atomic.Pointer[StreamBudget] // streams to receive; nil for none
	refused                 atomic.Bool                  // by a StreamBudget
	agreed                  atomic.Bool                  // streams to send
	nextStream, openStreams atomic.Int32
	streams                 atomic.Pointer[streams] // received; nil until there is one
}

type ciphers struct {
	send, recv *chachapoly.Key
}

// NewKeypair creates a session from the keys of a completed handshake. created is the current instant. The keys are
// copied into the ciphers; the caller wipes its own. The only error is a cipher that the build rejects (FIPS 140-only
// mode).
func NewKeypair(keys *noise.Keys, created int64) (*Keypair, error) {
	send, err := chachapoly.NewKey((*[chachapoly.KeyLen]byte)(&keys.Send))
	if err != nil {
		return nil, fmt.Errorf("creating the sending cipher: %w", err)
	}
	recv, err := chachapoly.NewKey((*[chachapoly.KeyLen]byte)(&keys.Recv))
	if err != nil {
		return nil, fmt.Errorf("creating the receiving cipher: %w", err)
	}
	k := &Keypair{created: created, local: keys.Local, remote: keys.Remote, initiator: keys.Initiator}
	k.ciphers.Store(&ciphers{send: send, recv: recv})
	return k, nil
}

// Local is the receiver index by which the peer addresses this session.
func (k *Keypair) Local() uint32 { return k.local }

// Remote is the receiver index by which this side addresses the peer's session.
func (k *Keypair) Remote() uint32 { return k.remote }

// Initiator reports whether this side initiated the handshake.
func (k *Keypair) Initiator() bool { return k.initiator }

// Created is the instant passed to NewKeypair, in nanoseconds.
func (k *Keypair) Created() int64 { return k.created }

// Sent is the number of counters reserved so far. From RekeyAfterMessages on, a new session is due.
func (k *Keypair) Sent() uint64 { return k.next.Load() }

// Received reports whether a message from the peer has been accepted in this session.
func (k *Keypair) Received() bool { return !k.window.empty() || k.HasStreams() }

// Newest reports whether an accepted counter is among the newest: at most 31 below the highest
// that the replay window has seen.
func (k *Keypair) Newest(counter uint64) bool {
	if IsStream(counter) {
		return allocated(&k.streams).newest(counter)
	}
	return counter>>blockShift >= k.window.newest.Load()
}

// Expired reports whether the session has reached RejectAfterTime.
func (k *Keypair) Expired(now int64) bool { return now-k.created >= RejectAfterTime }

// Reserve reserves a block of n consecutive counters, 1 <= n <= MaxReserve, with one atomic add. It reserves nothing
// and returns false when n is out of range or the block would reach RejectAfterMessages. Failed calls do not advance
// the counter, so it cannot wrap around.
func (k *Keypair) Reserve(n int) (first uint64, ok bool) {
	if n < 1 || n > MaxReserve {
		return 0, false
	}
	if k.next.Load() >= casFrom {
		return k.reserveExact(uint64(n))
	}
	return k.next.Add(uint64(n)) - uint64(n), true
}

func (k *Keypair) reserveExact(n uint64) (first uint64, ok bool) {
	for {
		first = k.next.Load()
		if first > RejectAfterMessages-n {
			return 0, false
		}
		if k.next.CompareAndSwap(first, first+n) {
			return first, true
		}
	}
}

// Restrict forbids data in the session: it carries control messages and keepalives only. Call it before other goroutines know the key pair.
func (k *Keypair) Restrict() { k.restricted = true }

// Restricted reports whether Restrict was called. Senders and receivers of data must check it.
func (k *Keypair) Restricted() bool { return k.restricted }

// Wipe makes the session unusable: nothing is sealed from then on, and OpenTrain returns RXExpired. The keys become
// unreachable once lanes have finished their current train, and are overwritten some time later (see chachapoly.Key).
func (k *Keypair) Wipe() {
	k.ciphers.Store(nil)
	k.releaseStreams()
}

// Wiped reports whether Wipe was called.
func (k *Keypair) Wiped() bool { return k.ciphers.Load() == nil }

// Format prints the indices, whatever the verb: no key can be printed by accident.
func (k *Keypair) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, k.String())
}

// String returns the session's indices.
func (k *Keypair) String() string {
	if k == nil {
		return "no session"
	}
	return fmt.Sprintf("session %08x/%08x", k.local, k.remote)
}

// LogValue logs the session's indices.
func (k *Keypair) LogValue() slog.Value { return slog.StringValue(k.String()) }

// Usable reports whether the session may be used for sending: k is not nil and has not expired.
func (k *Keypair) Usable(now int64) bool { return k != nil && !k.Expired(now) }
