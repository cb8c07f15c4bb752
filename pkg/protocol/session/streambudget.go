// SPDX-License-Identifier: Apache-2.0

package session

import "sync/atomic"

// sessionStreamBytes is the memory of the replay windows of all streams of a session: the arrays
// of each Window, and the pointers to them.
const sessionStreamBytes = liveStreams*(8*(smallBlocks+ringBlocks)+128) + 256

// StreamBudget bounds the memory of the replay windows of streams for all sessions together. A session takes its part before it announces streams:
// a peer to which none were announced sends its flows as ordinary messages, in order. A bound that is noticed when messages of a stream
// arrive would lose them.
type StreamBudget struct {
	left    atomic.Int64
	refused atomic.Uint64
}

// NewStreamBudget returns a budget of so many bytes.
func NewStreamBudget(bytes int64) *StreamBudget {
	b := new(StreamBudget)
	b.left.Store(bytes)
	return b
}

// Refused is the number of sessions that have asked for their part and did not get it.
func (b *StreamBudget) Refused() uint64 { return b.refused.Load() }

// take takes the part of one session.
func (b *StreamBudget) take() bool {
	if b.left.Add(-sessionStreamBytes) >= 0 {
		return true
	}
	b.give()
	return false
}

// give returns the part of one session.
func (b *StreamBudget) give() { b.left.Add(sessionStreamBytes) }

// AnnounceStreams lets the peer send streams in this session, until Wipe. The caller calls it before it sends a hello that announces them. It is false
// if nothing is left of b. A later call may be true.
func (k *Keypair) AnnounceStreams(b *StreamBudget) bool {
	switch {
	case k.announced.Load() != nil:
		return true
	case !b.take():
		if !k.refused.Swap(true) {
			b.refused.Add(1)
		}
		return false
	case !k.announced.CompareAndSwap(nil, b):
		b.give()
	case k.Wiped(): // perhaps after releaseStreams
		k.releaseStreams()
	}
	return true
}

// releaseStreams returns what the session has of the budget, if it has announced streams.
func (k *Keypair) releaseStreams() {
	if b := k.announced.Swap(nil); b != nil {
		b.give()
	}
}
