// SPDX-License-Identifier: Apache-2.0

package traffic

// window is the number of recent sequence numbers in which duplicates are detected. Older ones count as reordered.
const window = 1 << 16

// sequence counts reordered and duplicated datagrams of a stream. As in RFC 4737, a datagram is reordered if one with a higher
// number arrived before it. One goroutine uses it.
type sequence struct {
	next uint64 // one above the highest number seen
	seen [window / 64]uint64

	unique, reordered, duplicated uint64
}

// observe counts the datagram that arrives next, by its number.
func (s *sequence) observe(seq uint64) {
	switch {
	case seq >= s.next:
		s.forget(seq)
		s.next = seq + 1
	case s.next-seq > window:
		s.reordered++
		s.unique++
		return
	case s.has(seq):
		s.duplicated++
		return
	default:
		s.reordered++
	}
	s.unique++
	s.seen[seq/64%(window/64)] |= 1 << (seq % 64)
}

func (s *sequence) has(seq uint64) bool {
	return s.seen[seq/64%(window/64)]&(1<<(seq%64)) != 0
}

// forget clears the bits of the numbers from next to seq, which still stand for the numbers one window below.
func (s *sequence) forget(seq uint64) {
	if seq-s.next >= window {
		clear(s.seen[:])
		return
	}
	for n := s.next; n < seq; n++ {
		s.seen[n/64%(window/64)] &^= 1 << (n % 64)
	}
	s.seen[seq/64%(window/64)] &^= 1 << (seq % 64)
}
