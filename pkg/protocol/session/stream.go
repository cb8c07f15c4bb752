// SPDX-License-Identifier: Apache-2.0

package session

import "sync"

// A stream is one sprayed flow: its messages leave from several ports and overtake each other. No
// other message of the session has their counters: bit 62, the number of the stream, and the
// number of the message in the stream. So the receiver knows which messages of the flow are
// missing, without a byte more on the wire. Ordinary counters stay far below bit 62 until the
// session expires.
//
// A peer without streams would take such a counter for an ordinary one, and reject all ordinary
// messages after it as replays. So a session has streams only after a hello in this session has
// announced them. Hellos of earlier sessions say nothing about the peer that has the keys now.

const (
	streamBit   = 1 << 62
	streamShift = 32
	// MaxStreams is the number of streams that a session may begin.
	MaxStreams = 1024
	// MaxOpenStreams is the number of streams that a session may have at once.
	MaxOpenStreams = 8
	// liveStreams is the number of streams whose replay windows the receiver keeps:
	// MaxOpenStreams, and as many that have just ended.
	liveStreams = 2 * MaxOpenStreams
)

// IsStream reports whether a counter is one of a stream.
func IsStream(counter uint64) bool { return counter>>62 == 1 }

// SplitStream returns the stream of a counter, and the number of the message in it.
func SplitStream(counter uint64) (stream, number uint32) {
	return uint32(counter>>streamShift) &^ (streamBit >> streamShift), uint32(counter)
}

// Stream reserves the counters of one sprayed flow. One goroutine uses it, and closes it after the last message.
type Stream struct {
	keys *Keypair
	next uint64
	end  uint64
}

// AgreeStreams notes whether a hello that was received in this session announces streams.
func (k *Keypair) AgreeStreams(announced bool) { k.agreed.Store(announced) }

// OpenStream begins a stream; ok is false if the peer has not announced streams in this session, or the session has too many.
func (k *Keypair) OpenStream() (s Stream, ok bool) {
	if !k.agreed.Load() {
		return s, false
	}
	if k.openStreams.Add(1) > MaxOpenStreams {
		k.openStreams.Add(-1)
		return s, false
	}
	n := k.nextStream.Add(1) - 1
	if n >= MaxStreams {
		k.nextStream.Store(MaxStreams) // it cannot wrap around
		k.openStreams.Add(-1)
		return s, false
	}
	first := uint64(streamBit) | uint64(n)<<streamShift
	return Stream{keys: k, next: first, end: first + 1<<streamShift}, true
}

// Reserve reserves n consecutive counters of the stream. It is false if n is out of range, or too few are left.
func (s *Stream) Reserve(n int) (first uint64, ok bool) {
	if n < 1 || uint64(n) > s.end-s.next {
		return 0, false
	}
	s.next += uint64(n)
	return s.next - uint64(n), true
}

// Keys returns the session of the stream, nil if the stream is closed or was never open.
func (s *Stream) Keys() *Keypair { return s.keys }

// HasSent reports whether a message with that counter may have been sent: an ordinary one, or one of a stream that has begun.
func (k *Keypair) HasSent(counter uint64) bool {
	if IsStream(counter) {
		stream, _ := SplitStream(counter)
		return int64(stream) < int64(k.nextStream.Load())
	}
	return counter < k.Sent()
}

// Close ends the stream.
func (s *Stream) Close() {
	if s.keys != nil {
		s.keys.openStreams.Add(-1)
	}
	*s = Stream{}
}

// streams are the replay windows of the received streams of a session. Only messages of streams need them.
type streams struct {
	mu    sync.Mutex
	list  []*liveStream           // the most recently used is last
	ended [MaxStreams / 64]uint64 // bits of the streams that are no longer in list: all their messages count as replayed
}

type liveStream struct {
	number uint32
	owner  int // 1 + the lane that puts the stream in order, 0 for none yet, manyOwners if messages arrive at several lanes
	window Window
}

const manyOwners = -1

// accept is Window.AcceptRun for the counters of a stream, which it replaces by the numbers of the messages.
func (s *streams) accept(counters []uint64, fresh []bool) {
	stream, _ := SplitStream(counters[0])
	for i, c := range counters {
		counters[i] = uint64(uint32(c))
	}
	if stream >= MaxStreams {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.window(stream); w != nil {
		w.AcceptRun(counters, fresh)
	}
}

// window returns the window of a stream, nil if it has ended. The caller holds mu.
func (s *streams) window(number uint32) *Window {
	last := len(s.list) - 1
	for i := last; i >= 0; i-- {
		if l := s.list[i]; l.number == number {
			copy(s.list[i:], s.list[i+1:])
			s.list[last] = l
			return &l.window
		}
	}
	if s.ended[number/64]>>(number%64)&1 != 0 {
		return nil
	}
	if len(s.list) == liveStreams {
		old := s.list[0].number
		s.ended[old/64] |= 1 << (old % 64)
		s.list = append(s.list[:0], s.list[1:]...)
	}
	l := &liveStream{number: number}
	s.list = append(s.list, l)
	return &l.window
}

// ClaimStream claims a stream for a lane, which puts it in order. It is false, for all lanes, once
// two lanes have claimed the stream.
func (k *Keypair) ClaimStream(number uint32, lane int) bool {
	s := allocated(&k.streams)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.list {
		if l.number != number {
			continue
		}
		if l.owner == 0 {
			l.owner = lane + 1
		} else if l.owner != lane+1 {
			l.owner = manyOwners
		}
		return l.owner != manyOwners
	}
	return false
}

// newest reports whether the counter is among the newest of its stream (Keypair.Newest).
func (s *streams) newest(counter uint64) bool {
	number, n := SplitStream(counter)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.list {
		if l.number == number {
			return uint64(n)>>blockShift >= l.window.newest.Load()
		}
	}
	return false
}

// acceptStreams is the part of acceptChunk for chunks with messages of streams.
func (k *Keypair) acceptStreams(counters []uint64, fresh []bool) {
	for len(counters) > 0 {
		n := 1
		for n < len(counters) && windowOf(counters[n]) == windowOf(counters[0]) {
			n++
		}
		if windowOf(counters[0]) == 0 {
			k.window.AcceptRun(counters[:n], fresh[:n])
		} else if clear(fresh[:n]); k.announced.Load() != nil {
			allocated(&k.streams).accept(counters[:n], fresh[:n])
		}
		counters, fresh = counters[n:], fresh[n:]
	}
}

// windowOf identifies the replay window of a counter: 0 for the session's own.
func windowOf(counter uint64) uint64 {
	if !IsStream(counter) {
		return 0
	}
	return counter >> streamShift
}

// HasStreams reports whether a message of a stream was received.
func (k *Keypair) HasStreams() bool { return k.streams.Load() != nil }
