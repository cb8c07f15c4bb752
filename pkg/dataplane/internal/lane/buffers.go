// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// BufferSizes are the sizes of buffers in bytes. A waiting train is copied to the smallest that holds it, so that a queue of small
// datagrams does not take 64 KiB for each.
var BufferSizes = [...]int{2 << 10, 16 << 10, MaxElement, SlotLen}

const (
	// MaxElement is the maximum size in bytes of one receive from a UDP socket: a datagram, or a
	// train that GRO made.
	MaxElement = 65536
	// ReceiveClass is the index in BufferSizes of MaxElement.
	ReceiveClass = 2
	// SlotClass is the index in BufferSizes of SlotLen.
	SlotClass = 3
	// Headroom places the packet after a virtio-net header 16 bytes into its slot. The header of a data message then replaces
	// the virtio-net header, and a single packet is sealed in place.
	Headroom = wire.DataHeaderLen - offload.VnetHdrLen
	// tailroom is the space behind the largest train for padding and the authentication tag.
	tailroom = 64
	// cacheStagger spreads large buffers over cache sets: without it all would start at the same offset modulo 64 KiB.
	cacheStagger = 5 * 64
	// SlotLen is the size in bytes of a slot for reading the largest train of a TUN, with headroom and tailroom, in whole cache lines.
	SlotLen = (Headroom + tun.MaxTrain + tailroom + 63) &^ 63
)

// Buffer holds one train while it waits in a lane's transmit or receive queue.
type Buffer struct {
	Bytes []byte // its length is one of BufferSizes
	Class int    // index in BufferSizes
}

// bufferPools hold unused buffers of all lanes by class. After a burst the garbage collector frees them.
var bufferPools [len(BufferSizes)]sync.Pool

// OwnBuffers is the number of unused buffers of each class that a lane keeps. They are the most
// recently used ones, which may be in its core's cache.
const OwnBuffers = 16

// BufferSet provides the buffers of one lane, and counts the bytes in use.
type BufferSet struct {
	own      [len(BufferSizes)][]*Buffer
	Used     int       // bytes of the buffers in use
	released []*Buffer // in use until recycle
	leaving  int       // bytes of released
	made     int       // allocated buffers of all classes
	Memory   *trimmer  // nil for none
}

// Take returns a buffer of the smallest class that holds n bytes. n must not exceed SlotLen.
func (s *BufferSet) Take(n int) *Buffer {
	class := 0
	for BufferSizes[class] < n {
		class++
	}
	s.Used += BufferSizes[class]
	if last := len(s.own[class]) - 1; last >= 0 {
		b := s.own[class][last]
		s.own[class] = s.own[class][:last]
		return b
	}
	if b, ok := bufferPools[class].Get().(*Buffer); ok {
		return b
	}
	s.made++
	s.Memory.Note()
	return NewBuffer(class, s.made)
}

// NewBuffer allocates a buffer, the n-th of its lane. Large buffers begin at different offsets (cacheStagger): otherwise
// all would begin at the same offset modulo 64 KiB and compete for the same cache sets.
func NewBuffer(class, n int) *Buffer {
	size := BufferSizes[class]
	if size < MaxElement {
		return &Buffer{Bytes: make([]byte, size), Class: class}
	}
	const pageSize = 8 << 10 // the allocator's unit for large objects
	offset := n * cacheStagger % pageSize
	return &Buffer{Bytes: make([]byte, size+pageSize)[offset : offset+size : offset+size], Class: class}
}

// Release marks a buffer as unused from the next recycle on.
func (s *BufferSet) Release(b *Buffer) {
	s.released = append(s.released, b)
	s.leaving += len(b.Bytes)
}

// Held returns the bytes that are still in use after the next recycle.
func (s *BufferSet) Held() int { return s.Used - s.leaving }

// Recycle makes the released buffers available again. Nothing may refer to them any more.
func (s *BufferSet) Recycle() {
	for i, b := range s.released {
		s.Used -= len(b.Bytes)
		if own := &s.own[b.Class]; len(*own) < OwnBuffers {
			*own = append(*own, b)
		} else {
			bufferPools[b.Class].Put(b)
		}
		s.released[i] = nil
	}
	s.released, s.leaving = s.released[:0], 0
}
