// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// Tunnel is a WireGuard device on this host.
type Tunnel struct {
	// Port is its listen port, the canonical one.
	Port uint16
	// Lanes are the ports that its data messages may leave from, in any order. What a configured peer sends to one of
	// them is given to Port instead. No other tunnel may have any of them. None: the tunnel only gathers.
	Lanes []uint16
	// MarkMask says which bits of a packet's mark (SO_MARK) hold the flow of a message; they are cleared. Zero: the flow
	// is the packet's hash.
	MarkMask uint32
}

// SetTunnel adds a tunnel, or changes the one with that port. It is refused, and changes nothing, if one of its ports is
// another tunnel's, or a peer's lane would no longer be one of its ports.
func (s *State) SetTunnel(t Tunnel) error {
	if err := s.setTunnel(t); err != nil {
		return fmt.Errorf("setting the tunnel on port %d: %w", t.Port, err)
	}
	return nil
}

func (s *State) setTunnel(t Tunnel) error {
	if t.Port == 0 || slices.Contains(t.Lanes, 0) {
		return errors.New("port 0 is none")
	}
	if slices.Contains(t.Lanes, t.Port) {
		return errors.New("the listen port is no lane")
	}
	ports, err := s.localPorts()
	if err != nil {
		return err
	}
	for _, port := range append([]uint16{t.Port}, t.Lanes...) {
		if owner := hostOrder(ports[port].Canonical.Raw); owner != 0 && owner != t.Port {
			return fmt.Errorf("port %d belongs to the tunnel on port %d", port, owner)
		}
	}
	if err := s.keepsLanes(t); err != nil {
		return err
	}
	return s.assign(ports, t)
}

// keepsLanes returns an error if a peer of the tunnel has a lane outside.
func (s *State) keepsLanes(t Tunnel) error {
	peers, err := s.Peers()
	if err != nil {
		return err
	}
	lanes := make(map[uint16]bool, len(t.Lanes))
	for _, lane := range t.Lanes {
		lanes[lane] = true
	}
	outside := func(lane uint16) bool { return !lanes[lane] }
	for _, p := range peers {
		if i := slices.IndexFunc(p.Lanes, outside); p.Tunnel == t.Port && i >= 0 {
			return fmt.Errorf("the lane port %d of peer %v is not among its ports", p.Lanes[i], p.Endpoint)
		}
	}
	return nil
}

// assign gives the tunnel its ports, and takes away those that it no longer has.
func (s *State) assign(ports []spreadLocalPort, t Tunnel) error {
	next := make(map[uint32]spreadLocalPort)
	for port, was := range ports {
		if hostOrder(was.Canonical.Raw) == t.Port {
			next[uint32(port)] = spreadLocalPort{}
		}
	}
	var lane spreadLocalPort
	lane.Canonical.Raw = networkOrder(t.Port)
	for _, port := range t.Lanes {
		next[uint32(port)] = lane
	}
	canonical := lane
	canonical.MarkMask = t.MarkMask
	next[uint32(t.Port)] = canonical
	for port, is := range next {
		if is == ports[port] {
			continue
		}
		if err := s.maps.LocalPorts.Put(port, is); err != nil {
			return fmt.Errorf("writing to the eBPF map of ports: %w", err)
		}
	}
	return nil
}

// RemoveTunnel removes a tunnel and its peers. No error if there is none.
func (s *State) RemoveTunnel(port uint16) error {
	if err := s.removeTunnel(port); err != nil {
		return fmt.Errorf("removing the tunnel on port %d: %w", port, err)
	}
	return nil
}

func (s *State) removeTunnel(port uint16) error {
	ports, err := s.localPorts()
	if err != nil {
		return err
	}
	for i, p := range ports {
		if port == 0 || hostOrder(p.Canonical.Raw) != port {
			continue
		}
		if err := s.maps.LocalPorts.Put(uint32(i), spreadLocalPort{}); err != nil {
			return fmt.Errorf("writing to the eBPF map of ports: %w", err)
		}
	}
	peers, err := s.Peers()
	if err != nil {
		return err
	}
	for _, p := range peers {
		if p.Tunnel == port {
			err = errors.Join(err, s.DeletePeer(port, p.Endpoint))
		}
	}
	return err
}

// Tunnels returns the tunnels by ascending port, and their lanes too.
func (s *State) Tunnels() ([]Tunnel, error) {
	ports, err := s.localPorts()
	if err != nil {
		return nil, fmt.Errorf("listing tunnels: %w", err)
	}
	lanes := make(map[uint16][]uint16)
	var tunnels []Tunnel
	for port, p := range ports {
		switch owner := hostOrder(p.Canonical.Raw); {
		case owner == 0:
		case int(owner) == port:
			tunnels = append(tunnels, Tunnel{Port: owner, MarkMask: p.MarkMask})
		default:
			lanes[owner] = append(lanes[owner], uint16(port))
		}
	}
	for i := range tunnels {
		tunnels[i].Lanes = lanes[tunnels[i].Port]
	}
	return tunnels, nil
}

// localPorts reads the whole map: its index is the port.
func (s *State) localPorts() ([]spreadLocalPort, error) {
	size := int(s.maps.LocalPorts.MaxEntries())
	keys, values := make([]uint32, size), make([]spreadLocalPort, size)
	var cursor ebpf.MapBatchCursor
	n, err := s.maps.LocalPorts.BatchLookup(&cursor, keys, values, nil)
	if absent(err) != nil {
		return nil, fmt.Errorf("reading the eBPF map of ports: %w", err)
	}
	return values[:n], nil
}
