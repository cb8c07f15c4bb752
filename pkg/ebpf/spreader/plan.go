// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// plan is the result of a Config on this host at this moment.
type plan struct {
	cfg     Config
	devices []device // the configured one first
	// filtered are the other devices with the error filter.
	filtered []device
	parts    []string // names of devices that are parts of others: of bonds, bridges
	owners   map[uint16]udpOwner
	tunnel   programs.Tunnel
	peers    []programs.Peer
	zones    zones
	// addresses are this host's as the maps have them, own as all else has them.
	addresses []netip.Addr
	own       map[netip.Addr]bool
	report    Report
	found     *Tunnel // nil: not known
	byAddress map[netip.Addr]*TunnelPeer
}

// plan makes all decisions and changes nothing.
func (h *Host) plan(p pins, cfg Config, known history) (*plan, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if p.dir != "" {
		known.present = p.peers(cfg.Port)
	}
	pl := &plan{cfg: cfg, report: Report{Device: cfg.Device, Tunnel: unknownName, Port: cfg.Port, Gather: "none"}}
	if err := pl.findDevice(p, known); err != nil {
		return nil, err
	}
	for i := range known.present {
		p := &known.present[i]
		p.Endpoint = pl.zones.named(p.Endpoint)
	}
	if err := h.findTunnel(pl, known); err != nil {
		return nil, err
	}
	return pl, pl.choosePorts(p, known)
}

func (pl *plan) findDevice(p pins, known history) error {
	l, err := netlink.LinkByName(pl.cfg.Device)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return fmt.Errorf("%w: %s", ErrNoDevice, pl.cfg.Device)
	}
	if err != nil {
		return fmt.Errorf("reading the device %s: %w", pl.cfg.Device, err)
	}
	if err := CheckDevice(l); err != nil {
		return err
	}
	pl.devices = []device{deviceOf(l)}
	if err := pl.findReceivers(p, known.attempts); err != nil {
		return err
	}
	if err := errors.Join(pl.checkRemote(), pl.inheritGather(p)); err != nil {
		return err
	}
	if l.Type() == "veth" && pl.cfg.Gather == GatherXDP {
		pl.warn("XDP on a veth disables TSO and UDP GSO at its other end; --gather tc does not")
	}
	if pl.cfg.Gather == GatherXDP {
		pl.devices[0].gather = GatherXDP
	}
	return nil
}

// deviceNames returns the names of the devices.
func (pl *plan) deviceNames() (names []string) {
	for _, d := range pl.devices {
		names = append(names, d.name)
	}
	return names
}

// checkRemote returns an error for a peer whose address is this host's, or is on a device without the programs.
func (pl *plan) checkRemote() error {
	devices := pl.deviceNames()
	for _, p := range pl.cfg.configuredPeers() {
		a := pl.cfg.endpoint(p).Addr()
		if pl.own[a] {
			return fmt.Errorf("%s is not a valid peer address: it is this host's", p.Addr())
		}
		if a.Zone() != "" && !slices.Contains(devices, a.Zone()) {
			return fmt.Errorf("peer %s is on another device than %s: name that one, or one with an address", a, strings.Join(devices, " and "))
		}
	}
	return nil
}

// inheritGather sets the gather mode, if the Config leaves it unset, to the device's present one, which may come from another tunnel.
func (pl *plan) inheritGather(p pins) (err error) {
	c := &pl.cfg
	if c.Gather == "" && p.dir != "" {
		c.Gather, err = p.currentGather(c.Device, pl.devices[0].index)
	}
	c.Gather = cmp.Or(c.Gather, GatherAuto)
	return err
}

// findTunnel finds the tunnel by its port, and its peers.
func (h *Host) findTunnel(pl *plan, known history) error {
	tunnels, err := h.finder().Tunnels()
	if err != nil {
		return err
	}
	if pl.owners, err = h.readUDPOwners(); err != nil {
		return err
	}
	owner, bound := pl.owners[pl.cfg.Port]
	found, err := pl.tunnelOn(tunnels, bound)
	if err != nil {
		return err
	}
	if err := pl.checkTunnelOwner(found, owner); err != nil {
		return err
	}
	if found != nil && !bound {
		pl.warn("%s has no socket on port %d in this network namespace: it is down, or was created in another namespace, where "+
			"its packets are sent", found.Name, pl.cfg.Port)
	}
	if found != nil && found.StallFixed != "" {
		pl.warn("this kernel's WireGuard can stop receiving from a peer (CVE-2026-52945); boot Linux %s or later", found.StallFixed)
	}
	pl.found = found
	pl.choosePeers(found, known)
	return nil
}

// tunnelOn returns the tunnel that has the port, nil if a process has it that is not listed as a tunnel. bound reports whether any has.
func (pl *plan) tunnelOn(tunnels []Tunnel, bound bool) (*Tunnel, error) {
	candidates := pl.cfg.candidates()
	var found, unbound, inRange *Tunnel
	for i := range tunnels {
		switch t := &tunnels[i]; {
		case t.Port == 0:
		case t.Port == pl.cfg.Port && (bound || !t.Userspace):
			found = t
		case t.Port == pl.cfg.Port:
			unbound = t
		case slices.Contains(candidates, t.Port):
			inRange = t
		}
	}
	if unbound != nil {
		return nil, fmt.Errorf("%w listens on UDP port %d in this network namespace: that port is configured for %s, which is down, or whose process was started in another namespace",
			ErrNoTunnel, pl.cfg.Port, unbound.Name)
	}
	if found == nil && !bound {
		return nil, fmt.Errorf("%w listens on UDP port %d (%s)", ErrNoTunnel, pl.cfg.Port, namesOf(tunnels))
	}
	if inRange != nil {
		return nil, fmt.Errorf("the ports %s contain the listen port %d of %s; choose others with --ports", pl.cfg.portsString(), inRange.Port, inRange.Name)
	}
	return found, nil
}

func (h *Host) finder() Finder {
	if h.Tunnels == nil {
		return WireGuard{}
	}
	return h.Tunnels
}

// checkTunnelOwner returns an error for a tunnel that cannot be spread. A nil tunnel stands for a socket of which only the
// owner is known.
func (pl *plan) checkTunnelOwner(t *Tunnel, owner udpOwner) error {
	if t != nil && !t.Userspace {
		pl.report.Tunnel = t.Name
		return nil
	}
	process := owner.process
	if process == "" {
		process = findProcess(owner.inode)
	}
	if t != nil {
		pl.report.Tunnel = t.Name
		process = cmp.Or(process, "a process")
	}
	if process != "" && !pl.cfg.AnySocket {
		return fmt.Errorf("UDP port %d belongs to %s, not to the kernel's WireGuard: all its packets have the hash of its "+
			"socket, and would use one port (`ropewalk run` does not need this command: it spreads by itself)", pl.cfg.Port, process)
	}
	if t != nil || len(pl.cfg.configuredPeers()) > 0 {
		return nil
	}
	if process == "" && len(lackedCapabilities()) > 0 { // the tunnels of others are hidden
		return fmt.Errorf("finding the tunnel of UDP port %d: %w", pl.cfg.Port, unix.EPERM)
	}
	if process == "" {
		process = "the kernel, but to no device of this network namespace (a WireGuard device that was moved to another one " +
			"cannot be queried from here)"
	}
	return fmt.Errorf("UDP port %d belongs to %s: its peers are unknown; name them with --peer", pl.cfg.Port, process)
}

func namesOf(tunnels []Tunnel) string {
	var names []string
	for _, t := range tunnels {
		if t.Port != 0 {
			names = append(names, fmt.Sprintf("%s on %d", t.Name, t.Port))
		}
	}
	if len(names) == 0 {
		return "there are no tunnels in this network namespace"
	}
	return "there are " + strings.Join(names, ", ")
}

// choosePorts chooses the tunnel's source ports.
func (pl *plan) choosePorts(p pins, known history) error {
	if err := pl.cfg.checkEphemeral(); err != nil {
		return err
	}
	others, current, err := p.otherTunnels(pl.cfg.Port)
	if err != nil {
		return err
	}
	taken := portOwners{}
	for port := range pl.owners {
		if !slices.Contains(current, port) { // the tunnel had it first
			taken[port] = "a UDP socket of this host"
		}
	}
	for _, t := range others {
		for _, port := range t.Lanes {
			taken[port] = fmt.Sprintf("the tunnel on port %d", t.Port)
		}
	}
	if pl.cfg.PortPlan == nil && known.sharedPorts != nil {
		current = known.sharedPorts.keepIn(current)
	}
	lanes, err := taken.chooseLanePorts(pl.cfg, current)
	if err != nil {
		return err
	}
	if known.sharedPorts != nil {
		*known.sharedPorts = lanes
	}
	pl.report.Lanes = lanes
	pl.tunnel = programs.Tunnel{Port: pl.cfg.Port, Lanes: pl.assignLanes(taken)}
	return nil
}

// assignLanes sets the lanes of each peer that is not gather-only, and returns all lane ports, sorted.
func (pl *plan) assignLanes(taken portOwners) []uint16 {
	used, without := map[uint16]bool{}, map[uint16][]netip.AddrPort{}
	note := func(ports []uint16) {
		for _, p := range ports {
			used[p] = true
		}
	}
	note(pl.report.Lanes)
	for i := range pl.peers {
		p, at := &pl.peers[i], pl.zones.named(pl.peers[i].Endpoint)
		if _, found := slices.BinarySearchFunc(pl.report.GatherOnly, at, netip.AddrPort.Compare); found {
			continue
		}
		p.Lanes = pl.report.Lanes
		plan, planned := pl.cfg.PeerPlans[at]
		if !planned {
			continue
		}
		if port, who := taken.firstTakenOf(plan); who != "" {
			without[port] = append(without[port], at)
			continue
		}
		p.Lanes = plan
		note(plan)
	}
	for _, port := range slices.Sorted(maps.Keys(without)) {
		pl.warn("port %d belongs to %s: peers with that port in their port plan (%d, the first at %s) use the same ports as peers without one",
			port, taken[port], len(without[port]), without[port][0])
	}
	return slices.Sorted(maps.Keys(used))
}

func (h *Host) readUDPOwners() (map[uint16]udpOwner, error) {
	if h.udpOwners != nil {
		return h.udpOwners, nil
	}
	return udpPorts()
}

func (pl *plan) warn(format string, args ...any) {
	pl.report.Warnings = append(pl.report.Warnings, fmt.Sprintf(format, args...))
}

// choosePeers chooses the peers of the Config, or else the tunnel's peers with an endpoint. A
// peer in both Peers and GatherOnly is gather-only.
func (pl *plan) choosePeers(t *Tunnel, known history) {
	if known.proofs == nil {
		known.proofs = proofs{}
	}
	gatherOnly, endpoints, byAddress := pl.endpoints(pl.cfg.GatherOnly), pl.endpoints(pl.cfg.Peers), t.peersByAddress(known.present, known.probeKeys, known.proofs)
	if len(pl.cfg.configuredPeers()) == 0 {
		endpoints = pl.tunnelPeers(t, byAddress, known)
	}
	pl.byAddress = byAddress
	gatherOnly = sorted(gatherOnly)
	endpoints = slices.DeleteFunc(endpoints, func(e netip.AddrPort) bool {
		_, found := slices.BinarySearchFunc(gatherOnly, e, netip.AddrPort.Compare)
		return found
	})
	endpoints = sorted(endpoints)
	pl.report.Peers, pl.report.GatherOnly = endpoints, gatherOnly
	var unknown []netip.AddrPort
	for _, e := range sorted(slices.Concat(endpoints, gatherOnly)) {
		p := programs.Peer{Tunnel: pl.cfg.Port, Endpoint: pl.zones.indexed(e), Gather: pl.cfg.portsOf(e)}
		if found := byAddress[e.Addr()]; found != nil {
			p.ProbeKeys, p.Stalled, p.Unseen = known.probeKeys.of(found.Secrets), known.stalls[found.Key].stalled, known.unseen.has(found.Key)
			p.Proved = known.proofs[e.Addr()] == found.Key
		}
		switch {
		case p.ProbeKeys != programs.ProbeKeys{}:
		case pl.cfg.AnySocket:
			p.ProbeKeys = testKeys
		default:
			unknown = append(unknown, e)
		}
		pl.peers = append(pl.peers, p)
	}
	if len(unknown) > 0 {
		pl.warn("%d peers, the first at %s, are gathered from, and not spread to: their keys are unknown, so they cannot prove that "+
			"messages from other source ports arrive", len(unknown), unknown[0])
	}
	known.keepPeers(t)
}

// endpoints returns endpoints of the Config as they are used.
func (pl *plan) endpoints(named []netip.AddrPort) (all []netip.AddrPort) {
	for _, e := range named {
		all = append(all, pl.cfg.endpoint(e))
	}
	return all
}

// sorted sorts endpoints and removes duplicates.
func sorted(endpoints []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	return slices.Compact(endpoints)
}

// tunnelPeers returns the endpoints of a tunnel's peers, with their listen ports, without skipped
// peers.
func (pl *plan) tunnelPeers(t *Tunnel, byAddress map[netip.Addr]*TunnelPeer, known history) (endpoints []netip.AddrPort) {
	listens := func(p *TunnelPeer) netip.AddrPort { return p.listenEndpoint(pl.cfg.PeerPorts, known) }
	skipped := t.skipped(pl.own, pl.deviceNames(), byAddress, listens)
	pl.report.Skipped = skipped
	for i := range t.Peers {
		p := &t.Peers[i]
		if len(skipped) > 0 && skipped[0].Key == p.Key {
			skipped = skipped[1:]
			continue
		}
		endpoints = append(endpoints, listens(p))
	}
	return endpoints
}

// history is the knowledge of earlier calls about peers and ports.
type history struct {
	endpointPorts map[string]uint16 // by the peer's key, kept over calls; may be nil
	present       []programs.Peer   // the tunnel's peers in the maps
	sharedPorts   *sharedPorts      // kept over calls; may be nil
	probeKeys     probeKeys         // kept over calls; may be nil
	proofs        proofs            // kept over calls; may be nil
	stalls        stallWatch        // kept over calls; may be nil
	unseen        unseenWatch       // kept over calls; may be nil
	attempts      attempts          // kept over calls; may be nil
}

// keepPeers forgets the keys of peers that the tunnel no longer has, and their ports if there are many.
func (known history) keepPeers(t *Tunnel) {
	if t == nil {
		return
	}
	names, secrets := map[string]bool{}, map[ProbeSecrets]bool{}
	for _, p := range t.Peers {
		names[p.Key], secrets[p.Secrets] = true, true
	}
	if len(known.endpointPorts) > maxProofs { // a peer may come back soon, for example after a restart
		maps.DeleteFunc(known.endpointPorts, func(key string, _ uint16) bool { return !names[key] })
	}
	maps.DeleteFunc(known.probeKeys, func(s ProbeSecrets, _ programs.ProbeKeys) bool { return !secrets[s] })
}
