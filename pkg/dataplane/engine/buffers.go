// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

// bufferSizes are the sizes of buffers in bytes. A waiting train is copied to the smallest that holds it, so that a queue of small
// datagrams does not take 64 KiB for each.
var bufferSizes = [...]int{2 << 10, 16 << 10, maxElement, slotLen}

const (
	// maxElement is the maximum size in bytes of what one receive from a UDP socket returns: a datagram, or a train that GRO made.
	maxElement = 65536
	// receiveClass is the index in bufferSizes of maxElement.
	receiveClass = 2
	// slotClass is the index in bufferSizes of slotLen.
	slotClass = 3
	// slotLen is the size in bytes of a slot for reading the largest train of a TUN, with headroom and tailroom, in whole cache lines.
	slotLen = (headroom + tun.MaxTrain + tailroom + 63) &^ 63
)

// buffer holds one train while it waits in a lane's transmit or receive queue.
type buffer struct {
	bytes []byte // its length is one of bufferSizes
	class int    // index in bufferSizes
}

// bufferPools hold unused buffers of all lanes by class. After a burst the garbage collector frees them.
var bufferPools [len(bufferSizes)]sync.Pool

// ownBuffers is the number of unused buffers of each class that a lane keeps: the most recently used ones, which may be in its
// core's cache.
const ownBuffers = 16

// bufferSet provides the buffers of one lane, and counts the bytes in use.
type bufferSet struct {
	own      [len(bufferSizes)][]*buffer
	used     int       // bytes of the buffers in use
	released []*buffer // in use until recycle
	leaving  int       // bytes of released
	made     int       // allocated buffers of all classes
	memory   *trimmer  // nil for none
}

// take returns a buffer of the smallest class that holds n bytes. n must not exceed slotLen.
func (s *bufferSet) take(n int) *buffer {
	class := 0
	for bufferSizes[class] < n {
		class++
	}
	s.used += bufferSizes[class]
	if last := len(s.own[class]) - 1; last >= 0 {
		b := s.own[class][last]
		s.own[class] = s.own[class][:last]
		return b
	}
	if b, ok := bufferPools[class].Get().(*buffer); ok {
		return b
	}
	s.made++
	s.memory.note()
	return newBuffer(class, s.made)
}

// newBuffer allocates a buffer, the n-th of its lane. Large buffers begin at different offsets (cacheStagger): otherwise
// all would begin at the same offset modulo 64 KiB and compete for the same cache sets.
func newBuffer(class, n int) *buffer {
	size := bufferSizes[class]
	if size < maxElement {
		return &buffer{bytes: make([]byte, size), class: class}
	}
	const pageSize = 8 << 10 // the allocator's unit for large objects
	offset := n * cacheStagger % pageSize
	return &buffer{bytes: make([]byte, size+pageSize)[offset : offset+size : offset+size], class: class}
}

// release marks a buffer as unused from the next recycle on.
func (s *bufferSet) release(b *buffer) {
	s.released = append(s.released, b)
	s.leaving += len(b.bytes)
}

// held returns the bytes that are still in use after the next recycle.
func (s *bufferSet) held() int { return s.used - s.leaving }

// recycle makes the released buffers available again. Nothing may refer to them any more.
func (s *bufferSet) recycle() {
	for i, b := range s.released {
		s.used -= len(b.bytes)
		if own := &s.own[b.class]; len(*own) < ownBuffers {
			*own = append(*own, b)
		} else {
			bufferPools[b.class].Put(b)
		}
		s.released[i] = nil
	}
	s.released, s.leaving = s.released[:0], 0
}
