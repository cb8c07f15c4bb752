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

// SetPeers adds peers, or changes those of the same tunnel and endpoint, whose loads are kept. When there are too many,
// errors.Is(err, ErrFull). One is refused, and changes nothing, if a lane is not of its tunnel, or if the ports to gather
// cannot be told from those of another peer at the same address; those before it are set by then, and those behind it are not.
func (s *State) SetPeers(peers []Peer) error {
	if len(peers) == 0 {
		return nil
	}
	r, err := s.roster()
	if err != nil {
		return fmt.Errorf("setting %d peers: %w", len(peers), err)
	}
	for i := range peers {
		if err := s.setPeer(r, &peers[i]); err != nil {
			return fmt.Errorf("setting the peer %v of the tunnel on port %d: %w", peers[i].Endpoint, peers[i].Tunnel, err)
		}
	}
	return nil
}

func (s *State) setPeer(r *roster, p *Peer) error {
	if err := p.check(); err != nil {
		return err
	}
	if err := r.check(p); err != nil {
		return err
	}
	if err := s.putPeer(p); err != nil {
		return err
	}
	r.add(p)
	return s.putSource(r, p)
}

func (s *State) putPeer(p *Peer) error {
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

func (p *Peer) check() error {
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

// putSource makes the peer's ports gathered, or no longer. There is room: no peer has more than one source.
func (s *State) putSource(r *roster, p *Peer) error {
	key := sourceKey(p.Tunnel, p.Endpoint.Addr())
	if p.Gather == (spread.Ports{}) {
		if hostOrder(r.sources[key].Canonical.Raw) != p.Endpoint.Port() {
			return nil
		}
		delete(r.sources, key)
		return s.deleteSource(p.Tunnel, p.Endpoint)
	}
	value := spreadSource{First: p.Gather.First, Last: p.Gather.Last}
	value.Canonical.Raw = networkOrder(p.Endpoint.Port())
	if r.sources[key] == value {
		return nil
	}
	r.sources[key] = value
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
	sources, err := s.sources()
	if err != nil {
		return nil, fmt.Errorf("listing peers: %w", err)
	}
	var peers []Peer
	err = eachEntry(s.maps.Peers, func(key *spreadPeerKey, value *spreadPeer) {
		p := Peer{Tunnel: hostOrder(key.Tunnel.Raw), Endpoint: key.endpoint(), First: value.First}
		for _, lane := range value.Ports[:min(value.Lanes, spread.MaxPorts)] {
			p.Lanes = append(p.Lanes, hostOrder(lane.Raw))
		}
		source := sources[sourceKey(p.Tunnel, p.Endpoint.Addr())]
		if hostOrder(source.Canonical.Raw) == p.Endpoint.Port() {
			p.Gather = spread.Ports{First: source.First, Last: source.Last}
		}
		peers = append(peers, p)
	})
	if err != nil {
		return nil, fmt.Errorf("listing peers: %w", err)
	}
	slices.SortFunc(peers, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Tunnel, b.Tunnel), a.Endpoint.Compare(b.Endpoint))
	})
	return peers, nil
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
