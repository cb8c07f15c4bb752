// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// ClassifyQueues is the number of receive queues that can have a socket. Packets of further queues go up the stack.
const ClassifyQueues = 256

// Capacities of the maps of receiver indices and of sources.
const (
	ClassifyIndices = 65536
	ClassifySources = 16384
)

// present is the value of each element in a map that is used as a set.
const present uint8 = 1

// SetSocket redirects the data messages of a receive queue to an AF_XDP socket that is bound to that queue. The kernel
// removes the entry when the socket is closed.
func (c *Classify) SetSocket(queue, fd int) error {
	if queue < 0 || queue >= ClassifyQueues {
		return fmt.Errorf("setting the AF_XDP socket of queue %d: only queues 0 to %d can have one", queue, ClassifyQueues-1)
	}
	if err := c.maps.Xsks.Put(uint32(queue), uint32(fd)); err != nil {
		return fmt.Errorf("setting the AF_XDP socket of queue %d: %w", queue, err)
	}
	return nil
}

// RemoveSocket lets the data messages of a receive queue go up the stack again. It returns nil if the queue has no socket.
func (c *Classify) RemoveSocket(queue int) error {
	if err := ignoreNotExist(c.maps.Xsks.Delete(uint32(queue))); err != nil {
		return fmt.Errorf("removing the AF_XDP socket of queue %d: %w", queue, err)
	}
	return nil
}

// SetAddresses sets the addresses of this host, on all devices: those at which the tunnel's UDP socket receives. Packets to
// any other address go up the stack. Addresses that were set before stay in the map without interruption. If there are
// too many, errors.Is(err, ErrFull), and the last ones are missing.
func (c *Classify) SetAddresses(addresses []netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return setAddresses(c.maps.Addresses, addresses)
}

// AddSourcePort adds a port from which the tunnel sends besides its listen port. Initiations to it have the limits of those to the listen port.
// There is room for as many as an underlay.Port opens.
func (c *Classify) AddSourcePort(port uint16) error {
	if err := explainPutError(c.maps.SourcePorts.Put(uint32(port), present)); err != nil {
		return fmt.Errorf("adding the source port %d to the XDP program: %w", port, err)
	}
	return nil
}

// AddIndex adds a receiver index, for CheckIndices. Call it before the handshake message with the index is sent. If there
// are too many, errors.Is(err, ErrFull). In that case load a Classify without CheckIndices and let it take over, or
// messages are lost.
func (c *Classify) AddIndex(index uint32) error {
	if err := explainPutError(c.maps.Indices.Put(index, present)); err != nil {
		return fmt.Errorf("adding a receiver index to the XDP program: %w", err)
	}
	return nil
}

// RemoveIndex removes a receiver index. It returns nil if there is none.
func (c *Classify) RemoveIndex(index uint32) error {
	if err := ignoreNotExist(c.maps.Indices.Delete(index)); err != nil {
		return fmt.Errorf("removing a receiver index from the XDP program: %w", err)
	}
	return nil
}

// AddPeerSource adds a peer's configured endpoint, or the source of its last authenticated message. Initiations from its
// address do not use TotalLimit, and other sources cannot evict its SourceLimit. Data messages from the endpoint to an
// unknown index are dropped. Peers may share an endpoint, an address or an IPv6 /64: each AddPeerSource needs one
// RemovePeerSource. If there are too many, errors.Is(err, ErrFull), and the peer is treated like an unknown source.
func (c *Classify) AddPeerSource(endpoint netip.AddrPort) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := errors.Join(
		addRef(c.maps.PeerSources, c.sourceRefs, limitKey(endpoint.Addr()), uint64(0)),
		addRef(c.maps.Endpoints, c.endpointRefs, endpointKey(endpoint), present),
	)
	if err != nil {
		return fmt.Errorf("adding the peer source %v to the XDP program: %w", endpoint, err)
	}
	return nil
}

// RemovePeerSource reverts one AddPeerSource. It returns nil if there was none.
func (c *Classify) RemovePeerSource(endpoint netip.AddrPort) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := errors.Join(
		removeRef(c.maps.PeerSources, c.sourceRefs, limitKey(endpoint.Addr())),
		removeRef(c.maps.Endpoints, c.endpointRefs, endpointKey(endpoint)),
	)
	if err != nil {
		return fmt.Errorf("removing the peer source %v from the XDP program: %w", endpoint, err)
	}
	return nil
}

// addRef counts one more reference to a key of the map. The first one adds it, with that value.
func addRef[K comparable](m *ebpf.Map, refs map[K]int, key K, value any) error {
	if refs[key] == 0 {
		if err := explainPutError(m.Put(key, value)); err != nil {
			return err
		}
	}
	refs[key]++
	return nil
}

// removeRef counts one reference less, unless there is none. The last one removes the key.
func removeRef[K comparable](m *ebpf.Map, refs map[K]int, key K) error {
	switch refs[key] {
	case 0:
		return nil
	case 1:
		if err := ignoreNotExist(m.Delete(key)); err != nil {
			return err
		}
		delete(refs, key)
	default:
		refs[key]--
	}
	return nil
}

// ClassifyCounters holds the counters of a Classify. Each packet to the listen port, and each initiation to a source port, counts as one event or one drop.
type ClassifyCounters struct {
	Events [ClassifyEventCount]uint64
	Drops  [drop.Count]uint64
}

// Counters returns the sums over all CPUs since the program was loaded. The snapshot is not atomic.
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
	for i, w := range addressWords(a) {
		key.Words[i].Raw = w
	}
	return key
}

func endpointKey(e netip.AddrPort) classifyEndpoint {
	key := classifyEndpoint{Address: addressKey(e.Addr())}
	key.Port.Raw = networkOrder(e.Port())
	return key
}

// limitKey returns the key under which the program limits initiations from an address: the IPv4 address or IPv6 /64.
func limitKey(a netip.Addr) classifyAddress {
	key := addressKey(a)
	if !a.Unmap().Is4() {
		key.Words[2].Raw, key.Words[3].Raw = 0, 0
	}
	return key
}
