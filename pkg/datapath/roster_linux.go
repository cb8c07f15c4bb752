// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

// roster is what the maps say of ports and peers, read at once: asked for each peer apart, that would be a thousand system
// calls for each of thousands.
type roster struct {
	owners  []uint16                         // the tunnels, by port
	sources map[spreadSourceKey]spreadSource // whose ports are gathered
	at      map[spreadSourceKey][]uint16     // canonical ports of the peers of an address
}

func (s *State) roster() (*roster, error) {
	ports, err := s.localPorts()
	if err != nil {
		return nil, err
	}
	r := &roster{owners: make([]uint16, 1<<16), at: map[spreadSourceKey][]uint16{}}
	for port, p := range ports {
		r.owners[port] = hostOrder(p.Canonical.Raw)
	}
	if r.sources, err = s.sources(); err != nil {
		return nil, err
	}
	err = eachEntry(s.maps.Peers, func(key *spreadPeerKey, _ *spreadPeer) {
		at := spreadSourceKey{Address: key.Address, Tunnel: key.Tunnel}
		r.at[at] = append(r.at[at], hostOrder(key.Port.Raw))
	})
	return r, err
}

func (s *State) sources() (map[spreadSourceKey]spreadSource, error) {
	all := map[spreadSourceKey]spreadSource{}
	err := eachEntry(s.maps.Sources, func(key *spreadSourceKey, value *spreadSource) { all[*key] = *value })
	return all, err
}

// add notes a peer that was put into its map.
func (r *roster) add(p *Peer) {
	key := sourceKey(p.Tunnel, p.Endpoint.Addr())
	if !slices.Contains(r.at[key], p.Endpoint.Port()) {
		r.at[key] = append(r.at[key], p.Endpoint.Port())
	}
}

// check returns an error if a peer cannot be beside the others.
func (r *roster) check(p *Peer) error {
	if err := r.checkLanes(p); err != nil {
		return err
	}
	return r.checkNeighbours(p)
}

// checkLanes returns an error unless the tunnel exists and has all the lanes.
func (r *roster) checkLanes(p *Peer) error {
	if slices.Contains(p.Lanes, p.Tunnel) {
		return errors.New("the canonical port is no lane")
	}
	if p.Tunnel == 0 || r.owners[p.Tunnel] != p.Tunnel {
		return fmt.Errorf("port %d is not of that tunnel", p.Tunnel)
	}
	for _, port := range p.Lanes {
		if r.owners[port] != p.Tunnel {
			return fmt.Errorf("port %d is not of that tunnel", port)
		}
	}
	return nil
}

// checkNeighbours returns an error if a packet from the peer's address could be its and another's.
func (r *roster) checkNeighbours(p *Peer) error {
	key := sourceKey(p.Tunnel, p.Endpoint.Addr())
	other := r.sources[key]
	port, taken := hostOrder(other.Canonical.Raw), spread.Ports{First: other.First, Last: other.Last}
	switch {
	case port == p.Endpoint.Port():
	case port != 0 && p.Gather != spread.Ports{}:
		return fmt.Errorf("the ports %v of the peer on port %d of that address are gathered already", taken, port)
	case taken.Contains(p.Endpoint.Port()):
		return fmt.Errorf("the canonical port is among the ports %v of the peer on port %d of that address", taken, port)
	}
	for _, port := range r.at[key] {
		if p.Gather.Contains(port) {
			return fmt.Errorf("the ports to gather, %v, contain %d, on which there is another peer", p.Gather, port)
		}
	}
	return nil
}

// eachEntry calls with all entries of a hash map, of which some hundred are read at a time (Linux 5.6).
func eachEntry[K, V any](m *ebpf.Map, with func(*K, *V)) error {
	const atOnce = 512
	keys, values := make([]K, atOnce), make([]V, atOnce)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			with(&keys[i], &values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) { // these were the last
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading an eBPF map: %w", err)
		}
	}
}
