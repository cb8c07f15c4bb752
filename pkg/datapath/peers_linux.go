// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

// The eBPF map has room for as many lanes as a peer may have, no more and no less.
var _ [spread.MaxPorts]struct{} = [len(spreadPeer{}.Ports)]struct{}{}

// ErrFull is returned when no more fit. Unless a method says otherwise, nothing was changed.
var ErrFull = errors.New("no room for another one")

// Peer is the other end of a tunnel, at one endpoint.
type Peer struct {
	// Tunnel is the listen port of the Tunnel on this host.
	Tunnel uint16
	// Endpoint is the peer's address and canonical port. A zone is ignored; an IPv4 address mapped into IPv6 is the
	// IPv4 address.
	Endpoint netip.AddrPort
	// Lanes are the source ports that flows towards the peer are spread over, at most spread.MaxPorts, out of its Tunnel's
	// Lanes. Planned ones are in the order of the plan. None: nothing is spread towards the peer.
	Lanes []uint16
	// First is the lane, modulo their number, that of equally loaded ones is taken first, then those behind it. Hosts
	// that send to one peer should differ in it.
	First uint32
	// Gather is a range that holds the source ports that the peer spreads over: they are replaced by the canonical one.
	// One address can have one such range per tunnel. Empty: nothing is replaced.
	Gather spread.Ports
}

// SetPeer adds a peer, or changes the one of that tunnel and endpoint, whose loads are kept. When there are too many,
// errors.Is(err, ErrFull). It is refused, and changes nothing, if a lane is not of its tunnel, or if the ports to gather
// cannot be told from those of another peer at the same address.
func (s *State) SetPeer(p Peer) error {
	if err := s.setPeer(p); err != nil {
		return fmt.Errorf("setting the peer %v of the tunnel on port %d: %w", p.Endpoint, p.Tunnel, err)
	}
	return nil
}

func (s *State) setPeer(p Peer) error {
	if err := p.check(); err != nil {
		return err
	}
	if err := s.checkLanes(p); err != nil {
		return err
	}
	if err := s.checkNeighbours(p); err != nil {
		return err
	}
	if err := s.putPeer(p); err != nil {
		return err
	}
	return s.putSource(p)
}

func (s *State) putPeer(p Peer) error {
	key := peerKey(p.Tunnel, p.Endpoint)
	var value spreadPeer
	if err := absent(s.maps.Peers.Lookup(&key, &value)); err != nil {
		return fmt.Errorf("reading the eBPF map of peers: %w", err)
	}
	value.Lanes, value.First = uint32(len(p.Lanes)), p.First
	for i, lane := range p.Lanes {
		value.Ports[i].Raw = networkOrder(lane)
	}
	return explainPut(s.maps.Peers.Put(&key, &value))
}

func (p Peer) check() error {
	switch {
	case !p.Endpoint.Addr().IsValid() || p.Endpoint.Port() == 0:
		return errors.New("not an endpoint")
	case len(p.Lanes) > spread.MaxPorts:
		return fmt.Errorf("%d lanes, at most %d are possible", len(p.Lanes), spread.MaxPorts)
	case p.Gather.Len() == 0 && p.Gather != spread.Ports{}:
		return fmt.Errorf("no such ports to gather: %v", p.Gather)
	case p.Gather.Contains(p.Endpoint.Port()):
		return fmt.Errorf("the ports to gather, %v, contain the canonical port", p.Gather)
	}
	return nil
}

// checkLanes returns an error unless the tunnel exists and has all the lanes.
func (s *State) checkLanes(p Peer) error {
	if slices.Contains(p.Lanes, p.Tunnel) {
		return errors.New("the canonical port is no lane")
	}
	for _, port := range append([]uint16{p.Tunnel}, p.Lanes...) {
		var owner spreadLocalPort
		if err := s.maps.LocalPorts.Lookup(uint32(port), &owner); err != nil {
			return fmt.Errorf("reading the eBPF map of ports: %w", err)
		}
		if hostOrder(owner.Canonical.Raw) != p.Tunnel || p.Tunnel == 0 {
			return fmt.Errorf("port %d is not of that tunnel", port)
		}
	}
	return nil
}

// checkNeighbours returns an error if a packet from the peer's address could be its and another's.
func (s *State) checkNeighbours(p Peer) error {
	key := sourceKey(p.Tunnel, p.Endpoint.Addr())
	var other spreadSource
	if err := s.maps.Sources.Lookup(&key, &other); absent(err) != nil {
		return fmt.Errorf("reading the eBPF map of sources: %w", err)
	}
	port, taken := hostOrder(other.Canonical.Raw), spread.Ports{First: other.First, Last: other.Last}
	switch {
	case port == p.Endpoint.Port():
	case port != 0 && p.Gather != spread.Ports{}:
		return fmt.Errorf("the ports %v of the peer on port %d of that address are gathered already", taken, port)
	case taken.Contains(p.Endpoint.Port()):
		return fmt.Errorf("the canonical port is among the ports %v of the peer on port %d of that address", taken, port)
	}
	for port := int(p.Gather.First); port <= int(p.Gather.Last) && port != 0; port++ {
		key, value := peerKey(p.Tunnel, netip.AddrPortFrom(p.Endpoint.Addr(), uint16(port))), spreadPeer{}
		if err := s.maps.Peers.Lookup(&key, &value); err == nil {
			return fmt.Errorf("the ports to gather, %v, contain %d, on which there is another peer", p.Gather, port)
		} else if absent(err) != nil {
			return fmt.Errorf("reading the eBPF map of peers: %w", err)
		}
	}
	return nil
}

// putSource makes the peer's ports gathered, or no longer. There is room: no peer has more than one source.
func (s *State) putSource(p Peer) error {
	if p.Gather == (spread.Ports{}) {
		return s.deleteSource(p.Tunnel, p.Endpoint)
	}
	key := sourceKey(p.Tunnel, p.Endpoint.Addr())
	value := spreadSource{First: p.Gather.First, Last: p.Gather.Last}
	value.Canonical.Raw = networkOrder(p.Endpoint.Port())
	return explainPut(s.maps.Sources.Put(&key, &value))
}

// deleteSource lets no port of that peer be gathered; another's at its address still is.
func (s *State) deleteSource(tunnel uint16, endpoint netip.AddrPort) error {
	key := sourceKey(tunnel, endpoint.Addr())
	var value spreadSource
	err := s.maps.Sources.Lookup(&key, &value)
	if err == nil && hostOrder(value.Canonical.Raw) == endpoint.Port() {
		err = s.maps.Sources.Delete(&key)
	}
	if absent(err) != nil {
		return fmt.Errorf("deleting from the eBPF map of sources: %w", err)
	}
	return nil
}

// DeletePeer removes a peer. No error if there is none.
func (s *State) DeletePeer(tunnel uint16, endpoint netip.AddrPort) error {
	if err := s.deleteSource(tunnel, endpoint); err != nil {
		return err
	}
	key := peerKey(tunnel, endpoint)
	if err := absent(s.maps.Peers.Delete(&key)); err != nil {
		return fmt.Errorf("deleting from the eBPF map of peers: %w", err)
	}
	return nil
}

// Peers returns the peers by tunnel and endpoint, ascending.
func (s *State) Peers() ([]Peer, error) {
	var peers []Peer
	var key spreadPeerKey
	var value spreadPeer
	entries := s.maps.Peers.Iterate()
	for entries.Next(&key, &value) {
		p := Peer{Tunnel: hostOrder(key.Tunnel.Raw), Endpoint: key.endpoint(), First: value.First}
		for _, lane := range value.Ports[:min(value.Lanes, spread.MaxPorts)] {
			p.Lanes = append(p.Lanes, hostOrder(lane.Raw))
		}
		peers = append(peers, p)
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("listing peers: %w", err)
	}
	for i := range peers {
		if err := s.getSource(&peers[i]); err != nil {
			return nil, fmt.Errorf("listing peers: %w", err)
		}
	}
	slices.SortFunc(peers, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Tunnel, b.Tunnel), a.Endpoint.Compare(b.Endpoint))
	})
	return peers, nil
}

func (s *State) getSource(p *Peer) error {
	key := sourceKey(p.Tunnel, p.Endpoint.Addr())
	var value spreadSource
	err := s.maps.Sources.Lookup(&key, &value)
	if err == nil && hostOrder(value.Canonical.Raw) == p.Endpoint.Port() {
		p.Gather = spread.Ports{First: value.First, Last: value.Last}
	}
	return absent(err)
}

// explainPut says what is the matter when an element cannot be added.
func explainPut(err error) error {
	if errors.Is(err, unix.E2BIG) {
		return ErrFull
	}
	if err != nil {
		return fmt.Errorf("writing to the eBPF map: %w", err)
	}
	return nil
}

// plain returns the endpoint as Peers does.
func plain(e netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(e.Addr().Unmap().WithZone(""), e.Port())
}

func peerKey(tunnel uint16, endpoint netip.AddrPort) spreadPeerKey {
	var key spreadPeerKey
	for i, word := range words(endpoint.Addr()) {
		key.Address[i].Raw = word
	}
	key.Port.Raw, key.Tunnel.Raw = networkOrder(endpoint.Port()), networkOrder(tunnel)
	return key
}

func sourceKey(tunnel uint16, address netip.Addr) spreadSourceKey {
	var key spreadSourceKey
	for i, word := range words(address) {
		key.Address[i].Raw = word
	}
	key.Tunnel.Raw = networkOrder(tunnel)
	return key
}

func (k *spreadPeerKey) endpoint() netip.AddrPort {
	var address [16]byte
	for i, word := range k.Address {
		binary.NativeEndian.PutUint32(address[4*i:], word.Raw)
	}
	return plain(netip.AddrPortFrom(netip.AddrFrom16(address), hostOrder(k.Port.Raw)))
}

// words returns an address, an IPv4 one mapped into IPv6, as the maps' keys hold it.
func words(address netip.Addr) (words [4]uint32) {
	b := address.As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

// networkOrder returns the value whose bytes in memory are the port in network order.
func networkOrder(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

func hostOrder(raw uint16) uint16 { return networkOrder(raw) }
