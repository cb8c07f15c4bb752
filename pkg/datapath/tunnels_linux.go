// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// Ports is a range of UDP ports, both ends included. The zero Ports is empty.
type Ports struct{ First, Last uint16 }

// Contains tells whether port is in the range.
func (p Ports) Contains(port uint16) bool { return port != 0 && p.First <= port && port <= p.Last }

func (p Ports) valid() bool { return p == Ports{} || p.First > 0 && p.First <= p.Last }

func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// Tunnel is a WireGuard device on this host.
type Tunnel struct {
	// Port is its listen port, the canonical one.
	Port uint16
	// Lanes are the ports that its data messages may leave from. What a configured peer sends to one of them is given
	// to Port instead. No other tunnel may have any of them. Empty: the tunnel only gathers.
	Lanes Ports
	// MarkMask says which bits of a packet's mark (SO_MARK) hold the flow of a message; they are cleared. Zero: the flow
	// is the packet's hash.
	MarkMask uint32
}

func (t Tunnel) owns(port int) bool { return port == int(t.Port) || t.Lanes.Contains(uint16(port)) }

// SetTunnel adds a tunnel, or changes the one with that port. It is refused, and changes nothing, if one of its ports is
// another tunnel's, or a peer's lane would no longer be one of its ports.
func (s *State) SetTunnel(t Tunnel) error {
	if err := s.setTunnel(t); err != nil {
		return fmt.Errorf("setting the tunnel on port %d: %w", t.Port, err)
	}
	return nil
}

func (s *State) setTunnel(t Tunnel) error {
	if t.Port == 0 || !t.Lanes.valid() {
		return fmt.Errorf("no such ports: %d with lanes %v", t.Port, t.Lanes)
	}
	if t.Lanes.Contains(t.Port) {
		return fmt.Errorf("the lane ports %v contain the listen port", t.Lanes)
	}
	ports, err := s.localPorts()
	if err != nil {
		return err
	}
	for port, p := range ports {
		if owner := hostOrder(p.Canonical.Raw); owner != 0 && owner != t.Port && t.owns(port) {
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
	for _, p := range peers {
		outside := func(lane uint16) bool { return !t.Lanes.Contains(lane) }
		if i := slices.IndexFunc(p.Lanes, outside); p.Tunnel == t.Port && i >= 0 {
			return fmt.Errorf("the lane port %d of peer %v is not in %v", p.Lanes[i], p.Endpoint, t.Lanes)
		}
	}
	return nil
}

// assign gives the tunnel its ports, and takes away those that it no longer has.
func (s *State) assign(ports []spreadLocalPort, t Tunnel) error {
	for port, was := range ports {
		var is spreadLocalPort
		if t.owns(port) {
			is.Canonical.Raw = networkOrder(t.Port)
		} else if hostOrder(was.Canonical.Raw) != t.Port {
			continue
		}
		if port == int(t.Port) {
			is.MarkMask = t.MarkMask
		}
		if is == was {
			continue
		}
		if err := s.maps.LocalPorts.Put(uint32(port), is); err != nil {
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

// Tunnels returns the tunnels by ascending port.
func (s *State) Tunnels() ([]Tunnel, error) {
	ports, err := s.localPorts()
	if err != nil {
		return nil, fmt.Errorf("listing tunnels: %w", err)
	}
	lanes := make(map[uint16]Ports)
	var tunnels []Tunnel
	for port, p := range ports {
		switch owner := hostOrder(p.Canonical.Raw); {
		case owner == 0:
		case int(owner) == port:
			tunnels = append(tunnels, Tunnel{Port: owner, MarkMask: p.MarkMask})
		case lanes[owner] == Ports{}:
			lanes[owner] = Ports{First: uint16(port), Last: uint16(port)}
		default:
			lanes[owner] = Ports{First: lanes[owner].First, Last: uint16(port)}
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
