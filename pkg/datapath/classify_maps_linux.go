// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/drop"
)

// ClassifyQueues is how many receive queues can have a socket. What comes on later ones goes up the stack.
const ClassifyQueues = 256

// ClassifyIndices and ClassifySources are how many fit at once.
const (
	ClassifyIndices = 65536
	ClassifySources = 16384
)

// present is the value of elements that only have to be there.
const present uint8 = 1

// SetSocket gives the data messages of a receive queue to an AF_XDP socket, which is bound to that queue of the device.
// Closing the socket, or the end of its process, undoes it by itself.
func (c *Classify) SetSocket(queue, fd int) error {
	if queue < 0 || queue >= ClassifyQueues {
		return fmt.Errorf("giving queue %d to a socket: only the first %d can have one", queue, ClassifyQueues)
	}
	if err := c.maps.Xsks.Put(uint32(queue), uint32(fd)); err != nil {
		return fmt.Errorf("giving queue %d to a socket: %w", queue, err)
	}
	return nil
}

// RemoveSocket lets the data messages of a receive queue go up the stack again. No error if it has no socket.
func (c *Classify) RemoveSocket(queue int) error {
	if err := absent(c.maps.Xsks.Delete(uint32(queue))); err != nil {
		return fmt.Errorf("taking queue %d from its socket: %w", queue, err)
	}
	return nil
}

// SetAddresses says which addresses are this host's: those that the tunnel's ordinary socket would receive at, on
// whatever device they are. Packets to any others are none of ours. Those that stay are never missed in between. When
// there are too many, errors.Is(err, ErrFull), and some of the new ones are missing.
func (c *Classify) SetAddresses(addresses []netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[netip.Addr]struct{}, len(addresses))
	for _, a := range addresses {
		if a.IsValid() {
			next[a.Unmap().WithZone("")] = struct{}{}
		}
	}
	for a := range c.addresses {
		if _, stays := next[a]; stays {
			continue
		}
		if err := absent(c.maps.Addresses.Delete(addressKey(a))); err != nil {
			return fmt.Errorf("removing the address %v: %w", a, err)
		}
		delete(c.addresses, a)
	}
	for a := range next {
		if err := explainPut(c.maps.Addresses.Put(addressKey(a), present)); err != nil {
			return fmt.Errorf("adding the address %v: %w", a, err)
		}
		c.addresses[a] = struct{}{}
	}
	return nil
}

// AddIndex makes a receiver index known, for CheckIndices. To be called before any peer can learn it, which is when the
// handshake message with it is sent. When there are too many, errors.Is(err, ErrFull): then load another Classify without
// CheckIndices and let it take over, or messages are lost.
func (c *Classify) AddIndex(index uint32) error {
	if err := explainPut(c.maps.Indices.Put(index, present)); err != nil {
		return fmt.Errorf("adding a receiver index: %w", err)
	}
	return nil
}

// RemoveIndex makes a receiver index unknown. No error if it was.
func (c *Classify) RemoveIndex(index uint32) error {
	if err := absent(c.maps.Indices.Delete(index)); err != nil {
		return fmt.Errorf("removing a receiver index: %w", err)
	}
	return nil
}

// AddSource says that a peer was heard from at an address, authenticated, or is configured there: its initiations need
// nothing of the Total budget, and nobody else can push its Source budget out of memory. Peers may share an address, or
// an IPv6 /64: each addition is undone by one RemoveSource. When there are too many, errors.Is(err, ErrFull), and the
// peer's initiations count like a stranger's.
func (c *Classify) AddSource(address netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := limitedAs(address)
	if c.sources[key] == 0 {
		if err := explainPut(c.maps.Known.Put(key, uint64(0))); err != nil {
			return fmt.Errorf("adding the source %v: %w", address, err)
		}
	}
	c.sources[key]++
	return nil
}

// RemoveSource undoes one AddSource. No error if there was none.
func (c *Classify) RemoveSource(address netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := limitedAs(address)
	if c.sources[key] > 1 {
		c.sources[key]--
		return nil
	}
	if err := absent(c.maps.Known.Delete(key)); err != nil {
		return fmt.Errorf("removing the source %v: %w", address, err)
	}
	delete(c.sources, key)
	return nil
}

// ClassifyCounters is what became of the packets to the tunnel's ports: each is one event or one drop.
type ClassifyCounters struct {
	Events [ClassifyEventCount]uint64
	Drops  [drop.Count]uint64
}

// Counters returns the sums over all CPUs since the program was loaded. It is not atomic over all of them.
func (c *Classify) Counters() (ClassifyCounters, error) {
	var sum ClassifyCounters
	var cpus []classifyCounters
	if err := c.maps.Counters.Lookup(uint32(0), &cpus); err != nil {
		return sum, fmt.Errorf("reading the eBPF counters: %w", err)
	}
	for _, cpu := range cpus {
		for i, n := range cpu.Events {
			sum.Events[i] += n
		}
		for i, n := range cpu.Drops {
			sum.Drops[i] += n
		}
	}
	return sum, nil
}

func addressKey(a netip.Addr) (key classifyAddress) {
	for i, word := range words(a) {
		key.Words[i].Raw = word
	}
	return key
}

// limitedAs returns what initiations from an address are limited as: the IPv4 address or the IPv6 /64.
func limitedAs(a netip.Addr) classifyAddress {
	key := addressKey(a)
	if !a.Unmap().Is4() {
		key.Words[2].Raw, key.Words[3].Raw = 0, 0
	}
	return key
}
