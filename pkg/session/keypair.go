// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

// MaxReserve is the largest number of counters that one Reserve gives out.
const MaxReserve = 1 << 16

// exactFrom is the counter from which Reserve counts by compare-and-swap. Below it, a plain add cannot overshoot the
// limit: that would take 2^16 goroutines that each reserve MaxReserve between their load and their add.
const exactFrom = RejectAfterMessages - 1<<32

// Keypair is one established session: a cipher and counters for each direction. All methods may be called by any
// number of goroutines at once.
type Keypair struct {
	ciphers   atomic.Pointer[ciphers] // nil once wiped
	created   int64
	local     uint32
	remote    uint32
	initiator bool

	_    [8]uint64 // sending lanes write next, all lanes read the above
	next atomic.Uint64
	_    [8]uint64

	window Window
}

type ciphers struct {
	send, recv *chachapoly.Key
}

// NewKeypair makes a session of a finished handshake's keys. created is the present instant. The keys are copied into
// the ciphers; the caller wipes its own. The only error is a cipher that the build refuses (FIPS 140-only mode).
func NewKeypair(keys *noise.Keys, created int64) (*Keypair, error) {
	send, err := chachapoly.NewKey((*[chachapoly.KeyLen]byte)(&keys.Send))
	if err != nil {
		return nil, fmt.Errorf("making the sending cipher: %w", err)
	}
	recv, err := chachapoly.NewKey((*[chachapoly.KeyLen]byte)(&keys.Recv))
	if err != nil {
		return nil, fmt.Errorf("making the receiving cipher: %w", err)
	}
	k := &Keypair{created: created, local: keys.Local, remote: keys.Remote, initiator: keys.Initiator}
	k.ciphers.Store(&ciphers{send: send, recv: recv})
	return k, nil
}

// Local is the receiver index by which the peer addresses this session.
func (k *Keypair) Local() uint32 { return k.local }

// Remote is the receiver index by which we address the peer's side.
func (k *Keypair) Remote() uint32 { return k.remote }

// Initiator tells whether this side began the handshake.
func (k *Keypair) Initiator() bool { return k.initiator }

// Created is the instant that was given to NewKeypair, in nanoseconds.
func (k *Keypair) Created() int64 { return k.created }

// Sent is the number of counters reserved so far. From RekeyAfterMessages on, a new session is due.
func (k *Keypair) Sent() uint64 { return k.next.Load() }

// Received tells whether a message of the peer's has been accepted under these keys.
func (k *Keypair) Received() bool { return !k.window.empty() }

// Expired tells whether the session has reached RejectAfterTime.
func (k *Keypair) Expired(now int64) bool { return now-k.created >= RejectAfterTime }

// Reserve takes a block of n consecutive counters, 1 <= n <= MaxReserve, with one atomic add. It refuses, and takes
// nothing, when n is out of range or the block would reach RejectAfterMessages; refusing any number of times brings the
// counter no closer to wrapping around.
func (k *Keypair) Reserve(n int) (first uint64, ok bool) {
	if n < 1 || n > MaxReserve {
		return 0, false
	}
	if k.next.Load() >= exactFrom {
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

// Wipe makes the session unusable: from now on nothing is sealed and OpenTrain reports RXExpired. The keys become
// unreachable once lanes have left their current train, and are overwritten some time after (see chachapoly.Key).
func (k *Keypair) Wipe() { k.ciphers.Store(nil) }

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

// Usable tells whether the session may be sent with: there is one, and it has not expired. k may be nil.
func (k *Keypair) Usable(now int64) bool { return k != nil && !k.Expired(now) }
