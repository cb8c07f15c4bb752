// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// stampLen is the length of the stamp at the start of each payload: the Flow's ID and the packet's number.
const stampLen = 8

// Flow makes the packets of one TCP flow, numbered from 0. It is used by one goroutine.
type Flow struct {
	Ends
	ID   uint32
	next uint32
	seq  uint32
}

// Sent is the number of packets made so far.
func (f *Flow) Sent() uint32 { return f.next }

// Next returns the next packet, with size payload bytes, at least 8, as a train of one packet for a TUN.
func (f *Flow) Next(size int) []byte {
	p := f.TCP(f.seq, f.payload(1, size))
	f.seq += uint32(size)
	return WithVnetHeader(p)
}

// Train returns the next count packets, with size payload bytes each, at least 8, as one train for a TUN.
func (f *Flow) Train(count, size int) []byte {
	e := f.TCPTrain(f.seq, size, f.payload(count, size))
	f.seq += uint32(count * size)
	return e
}

func (f *Flow) payload(count, size int) []byte {
	b := make([]byte, count*size)
	for i := range count {
		binary.BigEndian.PutUint32(b[i*size:], f.ID)
		binary.BigEndian.PutUint32(b[i*size+4:], f.next)
		f.next++
	}
	return b
}

// Checker checks that the packets of each flow come out in order and, unless Lossy is set, without gaps. It is safe for
// concurrent use.
type Checker struct {
	Lossy bool
	mu    sync.Mutex
	next  map[uint32]uint32
	total uint64
}

// Take checks the packets of one train written to a TUN.
func (c *Checker) Take(train []byte) error {
	packets, err := Packets(train)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range packets {
		if err := c.take(p); err != nil {
			return err
		}
	}
	return nil
}

// Seen is the number of packets taken of one flow.
func (c *Checker) Seen(id uint32) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next[id]
}

// Total is the number of packets taken.
func (c *Checker) Total() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// take checks one packet. The caller holds mu.
func (c *Checker) take(p []byte) error {
	if c.next == nil {
		c.next = map[uint32]uint32{}
	}
	t, ok := packet.FindTransport(p)
	if !ok || t.Protocol != packet.TCP || len(p) < t.Offset+packet.TCPHeaderLen+stampLen {
		return fmt.Errorf("taking a packet of %d bytes: not one of a Flow", len(p))
	}
	stamp := p[t.Offset+packet.TCPHeaderLen:]
	id, number := binary.BigEndian.Uint32(stamp), binary.BigEndian.Uint32(stamp[4:])
	if want := c.next[id]; number < want || number > want && !c.Lossy {
		return fmt.Errorf("flow %d: packet %d came out, want %d", id, number, want)
	}
	c.next[id] = number + 1
	c.total++
	return nil
}
