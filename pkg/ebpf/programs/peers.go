// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// SPREAD_LANES of the C header must equal spread.MaxPorts.
var _ [spread.MaxPorts]struct{} = [len(spreadPeer{}.Lane)]struct{}{}

// ErrFull is returned if an eBPF map is full. Unless a method's comment says otherwise, nothing was changed.
var ErrFull = errors.New("the eBPF map is full")

// MaxGather is the maximum number of lane ports from which a peer is gathered (HEARD_PORTS in bpf/include/spread_maps.h).
const MaxGather = 64 * len(spreadSource{}.Heard)

// Peer is the other end of a tunnel, at one endpoint.
type Peer struct {
	// Tunnel is the listen port of the Tunnel on this host.
	Tunnel uint16
	// Endpoint is the peer's address and listen port: the port without spreading. The zone of a link-local address is its device's index, in
	// decimal; other addresses have none. A mapped IPv4 address equals the IPv4 address.
	Endpoint netip.AddrPort
	// Lanes are the source ports over which flows to the peer are spread: at most spread.MaxPorts, all of them lane ports of
	// the tunnel. Ports of a port plan are in its order. A port that the peer has already keeps its place. Empty: messages to the peer
	// are not spread.
	Lanes []uint16
	// First is the index of the lane, modulo the number of lanes, that wins among equally loaded ones, followed by the next
	// ones. Hosts that send to the same peer should use different values.
	First uint32
	// Paused: messages to the peer keep the listen port (SetPeerPaused). SetPeers ignores it.
	Paused bool
	// Stalled: WireGuard receives nothing from the peer. The programs do not use it.
	Stalled bool
	// Unseen: WireGuard sends to the peer, and no message to it passes the spread program. The programs do not use it.
	Unseen bool
	// ProbeKeys are the keys of the probes which prove that the path admits lane ports. Without
	// them messages keep the listen port.
	ProbeKeys ProbeKeys
	// ProbeAnswered: the peer answers probes from the listen port. Ready: all lane ports have been
	// probed, so the answered ones are in use. Blocked are the others then: their messages keep
	// the listen port. SetPeers ignores all three.
	ProbeAnswered, Ready bool
	Blocked              []uint16
	// Proved: the peer has answered a probe from this address, also if it is silent now. Only the owner of its key can. The programs set it, and
	// SetPeers if an earlier entry had it. Datagrams to a lane port are gathered only then.
	Proved bool
	// Gather is the range of lane ports from which the peer sends. On receipt they are replaced by the endpoint's port. An
	// address can have one such range per tunnel, of at most MaxGather ports. Empty: source ports are not restored. A port is restored
	// only after an authentic probe from it, or if there are no ProbeKeys.
	Gather spread.Ports
}

// PeerError is the reason why SetPeers has refused a peer.
type PeerError struct {
	Tunnel   uint16
	Endpoint netip.AddrPort
	Err      error
}

func (e PeerError) Error() string {
	return fmt.Sprintf("setting the peer %v of the tunnel on port %d: %v", e.Endpoint, e.Tunnel, e.Err)
}

func (e PeerError) Unwrap() error { return e.Err }

// PeerErrors are the errors of several peers.
type PeerErrors []PeerError

func (e PeerErrors) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns all of them, for errors.Is.
func (e PeerErrors) Unwrap() (all []error) {
	for _, one := range e {
		all = append(all, one)
	}
	return all
}

// SetPeers adds peers, or updates those with the same tunnel and endpoint, whose loads are kept.
// It refuses a peer without a valid endpoint, or with a lane that is not a lane port of its
// tunnel. It also refuses one if its Gather range conflicts with another peer at the same
// address. It sets all others, and returns PeerErrors. After another error the peers behind the
// failed one are not set. If there are too many, errors.Is(err, ErrFull).
func (s *State) SetPeers(peers []Peer) error {
	if len(peers) == 0 {
		return nil
	}
	r, err := s.readPeerTable()
	if err != nil {
		return fmt.Errorf("setting %d peers: %w", len(peers), err)
	}
	var refused PeerErrors
	for i := range peers {
		p := &peers[i]
		if err := cmp.Or(p.check(), r.check(p)); err != nil {
			refused = append(refused, PeerError{p.Tunnel, p.Endpoint, err})
		} else if err := s.setPeer(r, p); err != nil {
			return PeerError{p.Tunnel, p.Endpoint, err}
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return refused
}

func (s *State) setPeer(r *peerTable, p *Peer) error {
	proved, same, err := s.putPeer(r, p)
	if err != nil {
		return err
	}
	r.add(p)
	return s.putSource(r, p, proved, same)
}

// putPeer also reports whether the peer has answered probes, and whether the endpoint was its own before, by its keys.
func (s *State) putPeer(r *peerTable, p *Peer) (proved uint16, same bool, err error) {
	key := peerKey(p.Tunnel, p.Endpoint)
	var value spreadPeer
	if err := ignoreNotExist(s.maps.Peers.Lookup(&key, &value)); err != nil {
		return 0, false, fmt.Errorf("reading the eBPF map of peers: %w", err)
	}
	if value.Number == 0 {
		value.Number = r.newNumber()
	}
	value.First, value.Stalled, value.Unseen = p.First, flag[uint8](p.Stalled), flag[uint8](p.Unseen)
	same = value.keys() == p.ProbeKeys
	value.setKeys(p.ProbeKeys)
	value.Proved |= flag[uint16](p.Proved)
	value.setLanePorts(p.Lanes)
	return value.Proved, same, explainPutError(s.maps.Peers.Put(&key, &value))
}

func (p *Peer) check() error {
	switch {
	case !p.Endpoint.Addr().IsValid() || p.Endpoint.Port() == 0:
		return errors.New("invalid endpoint")
	case len(p.Lanes) > spread.MaxPorts:
		return fmt.Errorf("%d lanes exceed the maximum of %d", len(p.Lanes), spread.MaxPorts)
	case p.Gather.Len() == 0 && p.Gather != spread.Ports{}:
		return fmt.Errorf("invalid range of lane ports to gather: %v", p.Gather)
	case p.Gather.Len() > MaxGather:
		return fmt.Errorf("%d lane ports to gather %v exceed the maximum of %d", p.Gather.Len(), p.Gather, MaxGather)
	case p.Gather.Contains(p.Endpoint.Port()):
		return fmt.Errorf("the lane ports to gather %v contain the endpoint port", p.Gather)
	}
	return nil
}

// putSource sets or removes the peer's lane ports. It keeps the proved ports of the same peer with the same range. A peer without keys cannot
// prove any: the operator who names it vouches for its whole range. The map cannot be full: no peer has more than one entry.
func (s *State) putSource(r *peerTable, p *Peer, proved uint16, same bool) error {
	key := sourceKey(p.Tunnel, p.Endpoint.Addr())
	if p.Gather == (spread.Ports{}) {
		if hostOrder(r.sources[key].EndpointPort.Raw) != p.Endpoint.Port() {
			return nil
		}
		delete(r.sources, key)
		return s.deleteSource(p.Tunnel, p.Endpoint)
	}
	value := spreadSource{First: p.Gather.First, Last: p.Gather.Last, Proved: proved}
	value.EndpointPort.Raw = networkOrder(p.Endpoint.Port())
	var was spreadSource // read again: the programs note proved ports
	if err := ignoreNotExist(s.maps.Sources.Lookup(&key, &was)); err != nil {
		return fmt.Errorf("reading the eBPF map of sources: %w", err)
	}
	switch {
	case p.ProbeKeys == ProbeKeys{}:
		for i := range value.Heard {
			value.Heard[i] = ^uint64(0)
		}
		value.HeardAt = math.MaxInt64 // for ever
	case same && was.EndpointPort == value.EndpointPort && was.First == value.First && was.Last == value.Last:
		value.Heard, value.HeardAt = was.Heard, was.HeardAt
	}
	if was == value {
		return nil
	}
	r.sources[key] = value
	return explainPutError(s.maps.Sources.Put(&key, &value))
}

// deleteSource removes the peer's lane ports. It keeps the lane ports of another peer at the same
// address.
func (s *State) deleteSource(tunnel uint16, endpoint netip.AddrPort) error {
	key := sourceKey(tunnel, endpoint.Addr())
	var value spreadSource
	err := s.maps.Sources.Lookup(&key, &value)
	if err == nil && hostOrder(value.EndpointPort.Raw) == endpoint.Port() {
		err = s.maps.Sources.Delete(&key)
	}
	if ignoreNotExist(err) != nil {
		return fmt.Errorf("deleting from the eBPF map of sources: %w", err)
	}
	return nil
}

// DeletePeer removes a peer. It returns nil if there is none.
func (s *State) DeletePeer(tunnel uint16, endpoint netip.AddrPort) error {
	if err := s.deleteSource(tunnel, endpoint); err != nil {
		return err
	}
	key := peerKey(tunnel, endpoint)
	if err := ignoreNotExist(s.maps.Peers.Delete(&key)); err != nil {
		return fmt.Errorf("deleting from the eBPF map of peers: %w", err)
	}
	return nil
}

// Peers returns all peers, sorted by tunnel and endpoint.
func (s *State) Peers() ([]Peer, error) {
	sources, err := s.sources()
	if err != nil {
		return nil, fmt.Errorf("listing the peers of spread: %w", err)
	}
	var peers []Peer
	err = forEachEntry(s.maps.Peers, func(key *spreadPeerKey, value *spreadPeer) {
		p := Peer{Tunnel: hostOrder(key.ListenPort.Raw), Endpoint: key.endpoint(), First: value.First, Paused: value.Paused != 0, Stalled: value.Stalled != 0, Unseen: value.Unseen != 0}
		p.ProbeKeys, p.ProbeAnswered, p.Ready, p.Proved, p.Blocked = value.keys(), value.Answers != 0, value.Ready != 0, value.Proved != 0, value.blockedPorts()
		p.Lanes = value.lanePorts()
		source := sources[sourceKey(p.Tunnel, p.Endpoint.Addr())]
		if hostOrder(source.EndpointPort.Raw) == p.Endpoint.Port() {
			p.Gather = spread.Ports{First: source.First, Last: source.Last}
		}
		peers = append(peers, p)
	})
	if err != nil {
		return nil, fmt.Errorf("listing the peers of spread: %w", err)
	}
	slices.SortFunc(peers, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Tunnel, b.Tunnel), a.Endpoint.Compare(b.Endpoint))
	})
	return peers, nil
}

// explainPutError turns the error of a map update into ErrFull or adds context to it.
func explainPutError(err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) { // of hash tables and of tries
		return ErrFull
	}
	if err != nil {
		return fmt.Errorf("writing to the eBPF map: %w", err)
	}
	return nil
}

func peerKey(tunnel uint16, endpoint netip.AddrPort) spreadPeerKey {
	var key spreadPeerKey
	for i, w := range addressWords(endpoint.Addr()) {
		key.Address[i].Raw = w
	}
	key.Port.Raw, key.ListenPort.Raw = networkOrder(endpoint.Port()), networkOrder(tunnel)
	return key
}

func sourceKey(tunnel uint16, address netip.Addr) spreadSourceKey {
	var key spreadSourceKey
	for i, w := range addressWords(address) {
		key.Address[i].Raw = w
	}
	key.ListenPort.Raw = networkOrder(tunnel)
	return key
}

func (k *spreadPeerKey) endpoint() netip.AddrPort {
	var b []byte
	for _, w := range k.Address {
		b = binary.NativeEndian.AppendUint32(b, w.Raw)
	}
	a := netip.AddrFrom16([16]byte(b)).Unmap()
	if zone := k.Address[1].Raw; hasZone(a) && zone != 0 {
		clear(b[4:8])
		a = netip.AddrFrom16([16]byte(b)).WithZone(strconv.FormatUint(uint64(zone), 10))
	}
	return netip.AddrPortFrom(a, hostOrder(k.Port.Raw))
}

// hasZone reports whether the maps' keys hold the zone of an address.
func hasZone(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.IsLinkLocalUnicast() }

// withZone returns an address as the maps' keys hold it. A link-local one has its zone in the 32
// bits behind the first 32, which are 0 in packets (RFC 4291, section 2.5.6).
func withZone(a netip.Addr) netip.Addr {
	if !hasZone(a) {
		return a
	}
	zone, _ := strconv.ParseUint(a.Zone(), 10, 32)
	b := a.As16()
	binary.NativeEndian.PutUint32(b[4:], uint32(zone))
	return netip.AddrFrom16(b)
}

// addressWords returns an address as the maps' keys hold it. IPv4 addresses are mapped into IPv6.
func addressWords(address netip.Addr) (words [4]uint32) {
	b := withZone(address).As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

// networkOrder converts a port from host to network byte order.
func networkOrder(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

func hostOrder(raw uint16) uint16 { return networkOrder(raw) }
