// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// peerTable is a copy of the maps of ports and peers, read in batches. Reading the maps for each peer would take a thousand
// system calls for each of thousands of peers.
type peerTable struct {
	owners        []uint16                         // listen port of the tunnel that owns a port, by port
	sources       map[spreadSourceKey]spreadSource // lane ports of peers, by address
	endpointPorts map[spreadSourceKey][]uint16     // ports of the peers' endpoints, by address
	numbers       map[uint16]bool                  // of the peers
}

func (s *State) readPeerTable() (*peerTable, error) {
	ports, err := s.localPorts()
	if err != nil {
		return nil, err
	}
	r := &peerTable{owners: make([]uint16, 1<<16), endpointPorts: map[spreadSourceKey][]uint16{}, numbers: map[uint16]bool{}}
	for port, p := range ports {
		r.owners[port] = hostOrder(p.ListenPort.Raw)
	}
	if r.sources, err = s.sources(); err != nil {
		return nil, err
	}
	err = forEachEntry(s.maps.Peers, func(key *spreadPeerKey, value *spreadPeer) {
		r.numbers[value.Number] = true
		at := spreadSourceKey{Address: key.Address, ListenPort: key.ListenPort}
		r.endpointPorts[at] = append(r.endpointPorts[at], hostOrder(key.Port.Raw))
	})
	return r, err
}

func (s *State) sources() (map[spreadSourceKey]spreadSource, error) {
	all := map[spreadSourceKey]spreadSource{}
	err := forEachEntry(s.maps.Sources, func(key *spreadSourceKey, value *spreadSource) { all[*key] = *value })
	return all, err
}

// add records a peer that was written to its map.
func (r *peerTable) add(p *Peer) {
	key := sourceKey(p.Tunnel, p.Endpoint.Addr())
	if !slices.Contains(r.endpointPorts[key], p.Endpoint.Port()) {
		r.endpointPorts[key] = append(r.endpointPorts[key], p.Endpoint.Port())
	}
}

// newNumber returns a number that no peer has, and probably none had shortly before: entries of a removed peer may be live. The map holds fewer peers than
// there are numbers.
func (r *peerTable) newNumber() (number uint16) {
	for number == 0 || r.numbers[number] {
		number = uint16(rand.Uint32())
	}
	r.numbers[number] = true
	return number
}

// check returns an error if a peer conflicts with its tunnel or with another peer.
func (r *peerTable) check(p *Peer) error {
	if err := r.checkLanes(p); err != nil {
		return err
	}
	return r.checkSameAddress(p)
}

// checkLanes returns an error unless the tunnel exists and owns all lane ports of the peer.
func (r *peerTable) checkLanes(p *Peer) error {
	if slices.Contains(p.Lanes, p.Tunnel) {
		return errors.New("the listen port cannot be a lane port")
	}
	if p.Tunnel == 0 || r.owners[p.Tunnel] != p.Tunnel {
		return fmt.Errorf("port %d does not belong to a tunnel", p.Tunnel)
	}
	for _, port := range p.Lanes {
		if r.owners[port] != p.Tunnel {
			return fmt.Errorf("port %d is not a lane port of that tunnel", port)
		}
	}
	return nil
}

// checkSameAddress returns an error if the source port of a packet from this address could mean this peer or another one.
func (r *peerTable) checkSameAddress(p *Peer) error {
	key := sourceKey(p.Tunnel, p.Endpoint.Addr())
	other := r.sources[key]
	port, taken := hostOrder(other.EndpointPort.Raw), spread.Ports{First: other.First, Last: other.Last}
	switch {
	case port == p.Endpoint.Port():
	case port != 0 && p.Gather != spread.Ports{}:
		return fmt.Errorf("another peer at the same address, with endpoint port %[2]d, already has the lane ports %[1]v", taken, port)
	case taken.Contains(p.Endpoint.Port()):
		return fmt.Errorf("the endpoint port is in the range of lane ports %v of another peer at the same address, whose endpoint port is %d", taken, port)
	}
	for _, port := range r.endpointPorts[key] {
		if p.Gather.Contains(port) {
			return fmt.Errorf("the lane ports %v contain the endpoint port %d of another peer", p.Gather, port)
		}
	}
	return nil
}

// forEachEntry calls visit for all entries of a hash map. It reads some hundred entries per system call (Linux 5.6).
func forEachEntry[K, V any](m *ebpf.Map, visit func(*K, *V)) error {
	const batch = 512
	keys, values := make([]K, batch), make([]V, batch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			visit(&keys[i], &values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) { // end of the map
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading an eBPF map: %w", err)
		}
	}
}
