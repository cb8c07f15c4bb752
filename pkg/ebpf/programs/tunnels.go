// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// Tunnel is a WireGuard tunnel on this host.
type Tunnel struct {
	// Port is its listen port.
	Port uint16
	// Lanes are the source ports of its data messages, in any order. Packets from a configured peer to one of these ports are
	// redirected to Port. No other tunnel may have any of them. Empty: the tunnel only gathers.
	Lanes []uint16
}

// SetTunnel adds a tunnel, or updates the one with that port. It returns an error, and changes
// nothing, if one of the ports belongs to another tunnel. The same holds if a peer of the tunnel
// uses a lane port that is not in Lanes.
func (s *State) SetTunnel(t Tunnel) error {
	if err := s.setTunnel(t); err != nil {
		return fmt.Errorf("setting the tunnel on port %d: %w", t.Port, err)
	}
	return nil
}

func (s *State) setTunnel(t Tunnel) error {
	if t.Port == 0 || slices.Contains(t.Lanes, 0) {
		return errors.New("port 0 is invalid")
	}
	if slices.Contains(t.Lanes, t.Port) {
		return errors.New("the listen port cannot be a lane port")
	}
	ports, err := s.localPorts()
	if err != nil {
		return err
	}
	for _, port := range append([]uint16{t.Port}, t.Lanes...) {
		if owner := hostOrder(ports[port].ListenPort.Raw); owner != 0 && owner != t.Port {
			return fmt.Errorf("UDP port %d is already a port of the tunnel with listen port %d", port, owner)
		}
	}
	if err := s.checkPeerLanes(t); err != nil {
		return err
	}
	if err := s.putLocalPorts(ports, t); err != nil {
		return err
	}
	return s.listTunnels()
}

// listTunnels writes the listen ports of the tunnels to the settings, as many as these hold.
func (s *State) listTunnels() error {
	tunnels, err := s.Tunnels()
	if err != nil {
		return err
	}
	return s.change(func(all *spreadSettings) {
		for i := range all.Tunnels {
			all.Tunnels[i].Raw = 0
			if i < len(tunnels) {
				all.Tunnels[i].Raw = networkOrder(tunnels[i].Port)
			}
		}
	})
}

// checkPeerLanes returns an error if a peer of the tunnel uses a lane port that is not in t.Lanes.
func (s *State) checkPeerLanes(t Tunnel) error {
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
			return fmt.Errorf("peer %[2]v uses the lane port %[1]d, which is not among the new ones", p.Lanes[i], p.Endpoint)
		}
	}
	return nil
}

// putLocalPorts writes the tunnel's ports, and clears ports that it no longer has.
func (s *State) putLocalPorts(ports []spreadLocalPort, t Tunnel) error {
	next := make(map[uint32]spreadLocalPort)
	for port, old := range ports {
		if hostOrder(old.ListenPort.Raw) == t.Port {
			next[uint32(port)] = spreadLocalPort{}
		}
	}
	var own spreadLocalPort
	own.ListenPort.Raw = networkOrder(t.Port)
	for _, port := range append([]uint16{t.Port}, t.Lanes...) {
		next[uint32(port)] = own
	}
	for port, entry := range next {
		if entry == ports[port] {
			continue
		}
		if err := s.maps.LocalPorts.Put(port, entry); err != nil {
			return fmt.Errorf("writing to the eBPF map of ports: %w", err)
		}
	}
	return nil
}

// RemoveTunnel removes a tunnel and its peers. It returns nil if there is none.
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
		if port == 0 || hostOrder(p.ListenPort.Raw) != port {
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
	return errors.Join(err, s.listTunnels())
}

// Tunnels returns the tunnels and their lanes, sorted by port.
func (s *State) Tunnels() ([]Tunnel, error) {
	ports, err := s.localPorts()
	if err != nil {
		return nil, fmt.Errorf("listing tunnels: %w", err)
	}
	lanes := make(map[uint16][]uint16)
	var tunnels []Tunnel
	for port, p := range ports {
		switch owner := hostOrder(p.ListenPort.Raw); {
		case owner == 0:
		case int(owner) == port:
			tunnels = append(tunnels, Tunnel{Port: owner})
		default:
			lanes[owner] = append(lanes[owner], uint16(port))
		}
	}
	for i := range tunnels {
		tunnels[i].Lanes = lanes[tunnels[i].Port]
	}
	return tunnels, nil
}

// localPorts reads the whole map. The index of the result is the port.
func (s *State) localPorts() ([]spreadLocalPort, error) {
	size := int(s.maps.LocalPorts.MaxEntries())
	keys, values := make([]uint32, size), make([]spreadLocalPort, size)
	var cursor ebpf.MapBatchCursor
	n, err := s.maps.LocalPorts.BatchLookup(&cursor, keys, values, nil)
	if ignoreNotExist(err) != nil {
		return nil, fmt.Errorf("reading the eBPF map of ports: %w", err)
	}
	return values[:n], nil
}
