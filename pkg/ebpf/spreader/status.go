// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// DeviceStatus is the status of one device, with its problems.
type DeviceStatus struct {
	Device string     `json:"device"`
	Spread HookStatus `json:"spread"`
	// Gather is the ingress or XDP hook.
	Gather HookStatus `json:"gather"`
	// Paused: messages to all peers keep the listen port (SetPaused).
	Paused  bool           `json:"paused"`
	Tunnels []TunnelStatus `json:"tunnels"`
	// Counters holds the device's event counters in a fixed order, including zeros.
	Counters []Counter `json:"counters"`
	// Queues holds the number of datagrams received for the tunnels, by receive queue.
	Queues []uint64 `json:"queues"`
	// Filter is the error filter's status, the same for the whole network namespace.
	Filter FilterStatus `json:"filter"`
	// Problems lists the problems, each with its fix.
	Problems []string `json:"problems"`
}

// UnknownState is the state of a hook that cannot be read. The device's problems give the reason.
const UnknownState = "unknown"

// HookStatus is one hook of a device.
type HookStatus struct {
	State   string `json:"state"` // of hook.State, or UnknownState
	Kind    string `json:"kind"`  // of hook.Kind, "none" when detached
	Program uint32 `json:"program,omitempty"`
	Name    string `json:"name,omitempty"` // the program's
	Reason  string `json:"reason"`         // for this kind
	// Before and After are the programs that run before and after it at the same attach point, in
	// order. A program that runs before may end the processing of a packet.
	Before []string `json:"before,omitempty"`
	After  []string `json:"after,omitempty"`
}

// Counter is one event counter (programs.Event).
type Counter struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
	Help  string `json:"help"`
}

// TunnelStatus is one tunnel on a device.
type TunnelStatus struct {
	Name  string       `json:"name"` // "?" if unknown
	Port  uint16       `json:"port"`
	Ports string       `json:"ports"` // the range that its lanes are in
	Peers []PeerStatus `json:"peers"`
	// Skipped are peers of the tunnel that cannot be spread to.
	Skipped []SkippedPeer `json:"skipped,omitempty"`
	// Interface has counters of an in-kernel WireGuard, nil for another tunnel.
	Interface *InterfaceCounters `json:"interface,omitempty"`
}

// PeerStatus is one peer of a tunnel.
type PeerStatus struct {
	// Endpoint is the tunnel's, or with the listen port in the maps if the tunnel has no peer with this address.
	Endpoint netip.AddrPort `json:"endpoint"`
	// PublicKey, ReceivedBytes and SentBytes are the tunnel's, empty and 0 if it has no peer with this address.
	PublicKey     string `json:"public_key,omitempty"`
	ReceivedBytes uint64 `json:"received_bytes"`
	SentBytes     uint64 `json:"sent_bytes"`
	Gather        string `json:"gather"` // the range of ports that it may spread over
	Paused        bool   `json:"paused"` // messages to it keep the listen port
	// Stalled: WireGuard sends to the peer and receives nothing from it but handshakes, as the process with Watch or Follow saw last.
	Stalled bool `json:"stalled,omitempty"`
	// Unseen: WireGuard sends to the peer, and none of it leaves from the listen port, as the process with Watch or Follow saw last.
	Unseen bool `json:"unseen,omitempty"`
	// ProbeAnswered: the peer answers probes from the listen port. Ready: it is spread to, from the ports whose probes it answers. Blocked are
	// the other ones: their messages keep the listen port.
	ProbeAnswered bool         `json:"probe_answered"`
	Ready         bool         `json:"ready"`
	Blocked       []uint16     `json:"blocked,omitempty"`
	Lanes         []LaneStatus `json:"lanes"`
}

// LaneStatus is one lane towards a peer.
type LaneStatus struct {
	Port uint16 `json:"port"`
	// Load is the number of bytes sent recently: it is halved every 134 ms.
	Load uint64 `json:"load"`
	// Share is the lane's share of the peer's load, 0 to 1.
	Share float64 `json:"share"`
}

// Status returns the status of a device, or of all devices in the network namespace if device is empty. It returns an
// empty slice if nothing is attached. It changes and mounts nothing.
func (h *Host) Status(ctx context.Context, device string) ([]DeviceStatus, error) {
	return h.status(ctx, device, pins.filterDevices)
}

// StatusForMetrics returns the status of all devices without the devices of the error filter and
// their problems. A host has one for each container, which takes some system calls. Otherwise it
// equals Status.
func (h *Host) StatusForMetrics(ctx context.Context) ([]DeviceStatus, error) {
	return h.status(ctx, "", func(pins) (devices, problems []string) { return nil, nil })
}

func (h *Host) status(ctx context.Context, device string, filterDevices func(pins) (devices, problems []string)) ([]DeviceStatus, error) {
	p, unlock, err := h.openMounted(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return []DeviceStatus{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	names, err := p.devices()
	if err != nil {
		return nil, err
	}
	tunnels, findErr := h.finder().Tunnels()
	owners, err := h.readUDPOwners()
	if err != nil {
		return nil, err
	}
	var filter FilterStatus
	var problems []string
	filter.Dropped, problems = p.filterDropped()
	var ofDevices []string
	filter.Devices, ofDevices = filterDevices(p)
	problems = append(problems, ofDevices...)
	all := []DeviceStatus{}
	for _, name := range names {
		if device != "" && device != name {
			continue
		}
		st := p.deviceStatus(name, names, tunnels, owners)
		if findErr != nil {
			st.problem("the tunnels cannot be listed: %v", findErr)
		}
		st.Filter, st.Problems = filter, append(st.Problems, problems...)
		all = append(all, st)
	}
	return all, nil
}

func (s *DeviceStatus) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

// deviceStatus reads one device's status. Errors become problems of this device only.
func (p pins) deviceStatus(name string, attached []string, tunnels []Tunnel, owners map[uint16]udpOwner) DeviceStatus {
	st := DeviceStatus{
		Device: name, Spread: HookStatus{State: UnknownState, Kind: "none"}, Gather: HookStatus{State: UnknownState, Kind: "none"},
		Tunnels: []TunnelStatus{}, Counters: []Counter{}, Queues: []uint64{}, Problems: []string{},
	}
	if err := hook.CheckPinDir(p.fs, p.device(name)); err != nil {
		st.problem("%v", err)
	}
	p.hookStatus(&st, deviceIndex(name))
	s, err := programs.OpenState(p.state(name))
	switch {
	case errors.Is(err, programs.ErrOtherLayout):
		st.problem("attached by another version of ropewalk: attach again to replace its programs, or detach")
		return st
	case errors.Is(err, fs.ErrNotExist):
		st.problem("pins are missing in %s: attach again to restore them, or detach", p.state(name))
		return st
	case err != nil:
		st.problem("the pinned maps cannot be read: %v", err)
		return st
	}
	defer s.Close()
	var pausedErr error
	st.Paused, pausedErr = s.Paused()
	if err := errors.Join(pausedErr, st.readTunnels(s, attached, tunnels, owners), st.readCounters(s)); err != nil {
		st.problem("the pinned maps cannot be read: %v", err)
	}
	return st
}

// hookStatus reads the hooks. Index 0 means that no device has this name.
func (p pins) hookStatus(st *DeviceStatus, index int) {
	egress, err := p.hook(st.Device, index, hook.Egress, hook.Best).Status()
	if err != nil {
		st.problem("the spread hook cannot be read: %v", err)
	} else {
		st.Spread = hookStatusOf(egress, whySpread(egress.Kind))
		st.readOrder(&st.Spread, p.hook(st.Device, index, hook.Egress, hook.Best))
		if egress.State == hook.Detached {
			st.problem("spread is not attached: attach again, or detach")
		}
	}
	point, gather, gatherErr := p.gatherHook(st.Device, index)
	if gatherErr != nil {
		st.problem("the gather hook cannot be read: %v", gatherErr)
	} else {
		st.Gather = hookStatusOf(gather, whyGather(gather.Kind))
		if gather.State == hook.Detached {
			st.problem("gather is not attached: attach again, or detach")
		}
		st.readOrder(&st.Gather, p.hook(st.Device, index, point, hook.Best))
	}
	if index == 0 {
		st.nameProblem(cmp.Or(egress.Device, gather.Device))
	}
	st.hookProblem("spread", egress, index)
	st.hookProblem("gather", gather, index)
}

// readOrder reads what runs before and after a hook's program.
func (s *DeviceStatus) readOrder(st *HookStatus, h hook.Hook) {
	before, after, err := h.Order()
	if err != nil {
		s.problem("the order of the programs at %s cannot be read: %v", h.AttachPoint, err)
		return
	}
	st.Before, st.After = neighbourNames(before), neighbourNames(after)
	if len(before) == 0 {
		return
	}
	if inFront, err := h.InFront(); err == nil && !inFront {
		s.problem("%s has come in front at %s and may end the processing of packets: attach again to run before it, or keep "+
			"`ropewalk spread attach --watch` running", strings.Join(st.Before, ", "), h.AttachPoint)
		return
	}
	s.problem("%s", behindText(h.AttachPoint, st.Before))
}

// nameProblem reports a device that no longer exists under its name. index is the index of the
// device which the programs are attached to, or 0.
func (s *DeviceStatus) nameProblem(index int) {
	if index == 0 {
		s.problem("the device is gone: attach again when it is back, or keep `ropewalk spread attach --watch` running")
		return
	}
	s.problem("the device was renamed to %s or moved to another network namespace, with its programs: attach "+
		"it under its new name, or detach", deviceName(index))
}

func hookStatusOf(s hook.Status, why string) HookStatus {
	st := HookStatus{State: s.State.String(), Kind: "none", Program: uint32(s.Program), Reason: why}
	if s.State != hook.Detached {
		st.Kind, st.Name = s.Kind.String(), hook.ProgramName(s.Program)
	}
	return st
}

func whySpread(k hook.Kind) string {
	switch k {
	case hook.TCX:
		return "the kernel has tcx (Linux 6.6)"
	case hook.Clsact:
		return "the kernel has no tcx (Linux 6.6): the program is a filter on a clsact qdisc"
	}
	return ""
}

func whyGather(k hook.Kind) string {
	switch k {
	case hook.TCX, hook.Clsact:
		return "tc ingress turns no offload off, and works on every device"
	case hook.XDPNative:
		return "asked for: less per packet, but XDP may turn offloads off (a veth's TSO and UDP GSO at the other end, " +
			"virtio_net's guest offloads)"
	}
	return ""
}

func (s *DeviceStatus) hookProblem(what string, at hook.Status, index int) {
	switch {
	case index == 0:
	case at.State == hook.Defunct:
		s.problem("%s is defunct: the device was removed, or the program was detached by force: attach again", what)
	case at.State == hook.Replaced:
		s.problem("%s was replaced by program %d (%s): attach again", what, at.Other, hook.ProgramName(at.Other))
	case at.State == hook.OnOtherDevice && at.Device == index:
		s.problem("%s is attached to a device that was moved to another network namespace: attach again", what)
	case at.State == hook.OnOtherDevice:
		s.problem("%s is attached to %s, which had this name before: attach again", what, deviceName(at.Device))
	}
}

func deviceName(index int) string {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("device index %d", index)
	}
	return l.Attrs().Name
}

func (s *DeviceStatus) readTunnels(state *programs.State, attached []string, tunnels []Tunnel, owners map[uint16]udpOwner) error {
	present, err := state.Tunnels()
	if err != nil {
		return err
	}
	links, addresses, err := hostnet.LinkAddresses()
	if err != nil {
		return err
	}
	names := zonesOf(links)
	own := names.ownAddresses(addresses)
	peers, err := state.Peers()
	if err != nil {
		return err
	}
	for _, t := range present {
		ts := TunnelStatus{Name: unknownName, Port: t.Port, Ports: portSpan(t.Lanes).String(), Peers: []PeerStatus{}}
		i := slices.IndexFunc(tunnels, func(found Tunnel) bool { return found.Port == t.Port })
		if _, bound := owners[t.Port]; i >= 0 {
			ts.Name, ts.Interface = tunnels[i].Name, readInterface(tunnels[i].Name)
		} else if !bound {
			s.problem("no tunnel in this network namespace listens on UDP port %d", t.Port)
		}
		present := peersOf(t.Port, peers)
		if err := ts.readPeers(state, present, names); err != nil {
			return err
		}
		if i >= 0 {
			byAddress := tunnels[i].peersByAddress(present, nil, proofs{})
			ts.readTraffic(byAddress)
			listens := func(p *TunnelPeer) netip.AddrPort {
				return p.listenEndpoint(gatherOf(present), history{present: present})
			}
			ts.Skipped = tunnels[i].skipped(own, attached, byAddress, listens)
		}
		if len(ts.Peers) == 0 {
			s.problem("port %d has no peers yet: attach again when they have an endpoint, or use --watch", t.Port)
		}
		s.checkLanes(ts)
		s.Tunnels = append(s.Tunnels, ts)
		if i >= 0 {
			s.checkMoved(ts, tunnels[i])
		}
	}
	return nil
}

// readPeers also gives the peers the names of their zones.
func (t *TunnelStatus) readPeers(state *programs.State, peers []programs.Peer, names zones) error {
	for i := range peers {
		peer, err := peerStatus(state, peers[i])
		if err != nil {
			return err
		}
		peer.Endpoint = names.named(peer.Endpoint)
		peers[i].Endpoint = peer.Endpoint
		t.Peers = append(t.Peers, peer)
	}
	return nil
}

// gatherOf returns the range of the peers' lane ports.
func gatherOf(peers []programs.Peer) spread.Ports {
	for i := range peers {
		if peers[i].Gather != (spread.Ports{}) {
			return peers[i].Gather
		}
	}
	return spread.DefaultPorts
}

// readTraffic copies the endpoints and byte counts as the tunnel has them, of peers that are known by their address.
func (t *TunnelStatus) readTraffic(byAddress map[netip.Addr]*TunnelPeer) {
	for i := range t.Peers {
		at := &t.Peers[i]
		if p := byAddress[at.Endpoint.Addr()]; p != nil {
			at.PublicKey, at.Endpoint, at.ReceivedBytes, at.SentBytes = p.Key, p.Endpoint, p.ReceivedBytes, p.SentBytes
		}
	}
}

// checkLanes reports stalled peers, and lane ports that the path to a peer does not admit, as probes show.
func (s *DeviceStatus) checkLanes(ts TunnelStatus) {
	for _, p := range ts.Peers {
		if p.Stalled {
			s.problem("%s sends to %s, and receives nothing but handshakes: the path may drop the peer's data, or this kernel's WireGuard has stalled "+
				"(CVE-2026-52945): removing the peer and adding it again may help (--restart-stalled-peers); else restart the interface", ts.Name, p.Endpoint)
		}
		if p.Unseen {
			s.problem("%s sends to %s, and nothing leaves from port %d: a NAT of this host (conntrack) may have given the port to another flow, such as a "+
				"container's; exempt the tunnel from conntrack: %s", ts.Name, p.Endpoint, ts.Port, hostnet.NoTrackCommand(ts.Port, fmt.Sprint(ts.Port)))
		}
		if len(p.Blocked) > 0 {
			s.problem("the path to %s drops messages from %d of %d source ports, the first is %d: a firewall may admit only replies to port %d, "+
				"or block some ports; flows of these ports keep port %d until a probe gets through", p.Endpoint, len(p.Blocked), len(p.Lanes),
				p.Blocked[0], ts.Port, ts.Port)
		}
	}
}

// checkMoved reports peers whose present endpoint is not configured.
func (s *DeviceStatus) checkMoved(ts TunnelStatus, t Tunnel) {
	known := make(map[netip.Addr]bool, len(ts.Peers)) // a map, since there may be thousands of both
	for _, p := range ts.Peers {
		known[p.Endpoint.Addr()] = true
	}
	skipped := make(map[string]bool, len(ts.Skipped))
	for _, p := range ts.Skipped {
		skipped[p.Key] = true
	}
	for _, p := range t.Peers {
		if !skipped[p.Key] && !known[p.Endpoint.Addr()] {
			s.problem("peer %s of %s moved to %s, which is not spread to: attach again, or use --watch", p.Key, t.Name, p.Endpoint)
		}
	}
}

func peerStatus(state *programs.State, p programs.Peer) (PeerStatus, error) {
	st := PeerStatus{
		Endpoint: p.Endpoint, Gather: p.Gather.String(), Paused: p.Paused, Stalled: p.Stalled, Unseen: p.Unseen,
		ProbeAnswered: p.ProbeAnswered, Ready: p.Ready, Blocked: p.Blocked, Lanes: []LaneStatus{},
	}
	loads, err := state.Loads(p)
	if err != nil {
		return st, err
	}
	var sum uint64
	for _, n := range loads {
		sum += n
	}
	for i, port := range p.Lanes {
		lane := LaneStatus{Port: port}
		if i < len(loads) && sum > 0 {
			lane.Load, lane.Share = loads[i], float64(loads[i])/float64(sum)
		}
		st.Lanes = append(st.Lanes, lane)
	}
	return st, nil
}

func (s *DeviceStatus) readCounters(state *programs.State) error {
	counters, err := state.Counters()
	if err != nil {
		return err
	}
	for i, n := range counters {
		e := programs.Event(i)
		s.Counters = append(s.Counters, Counter{Name: e.String(), Count: n, Help: e.Help()})
	}
	queues, err := state.QueueCounts()
	if err != nil {
		return err
	}
	for _, cpus := range queues {
		var sum uint64
		for _, n := range cpus {
			sum += n
		}
		s.Queues = append(s.Queues, sum)
	}
	return nil
}
