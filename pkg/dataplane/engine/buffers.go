// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

// bufferSizes are the sizes of buffers in bytes. A waiting train is copied to the smallest that holds it, so that a queue of small
// datagrams does not take 64 KiB for each.
var bufferSizes = [...]int{2 << 10, 16 << 10, maxElement, maxWaiting}

const (
	// maxElement is the size in bytes of the largest received element, and receiveClass the index of its buffers.
	maxElement   = 65536
	receiveClass = 2
	// maxWaiting is the size in bytes of the buffer for the largest train of a TUN.
	maxWaiting = (tun.MaxTrain + 63) &^ 63
)

// buffer is a buffer of a queue.
type buffer struct {
	bytes []byte // its length is one of bufferSizes
	class int    // index in bufferSizes
}

// bufferPools hold unused buffers of all lanes by class. After a burst the garbage collector frees them.
var bufferPools [len(bufferSizes)]sync.Pool

// ownBuffers is the number of unused buffers of each class that a lane keeps: the last used ones, which may be in its core's cache.
const ownBuffers = 16

// bufferSet provides the buffers of one lane, and counts them.
type bufferSet struct {
	own      [len(bufferSizes)][]*buffer
	used     int       // bytes of the buffers in use
	released []*buffer // in use until recycle
	made     int
}

// take returns the smallest buffer for n bytes, at most maxWaiting.
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
	return newBuffer(class, s.made)
}

// newBuffer allocates the n-th buffer of a class. Large ones begin at different offsets in their pages (cacheStagger): the allocator
// would place all at the same offset modulo 64 KiB.
func newBuffer(class, n int) *buffer {
	size := bufferSizes[class]
	if size < maxElement {
		return &buffer{bytes: make([]byte, size), class: class}
	}
	const pages = 8 << 10 // the allocator's unit for large objects
	at := n * cacheStagger % pages
	return &buffer{bytes: make([]byte, size+pages)[at : at+size : at+size], class: class}
}

// release marks a buffer as unused from the next recycle on.
func (s *bufferSet) release(b *buffer) { s.released = append(s.released, b) }

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
	s.released = s.released[:0]
}
