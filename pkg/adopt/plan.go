// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/datapath"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// plan is what a Config comes to on this host at this moment.
type plan struct {
	cfg      Config
	index    int  // the device's
	ethernet bool // its packets begin with an Ethernet header
	owners   map[uint16]udpOwner
	tunnel   datapath.Tunnel
	peers    []datapath.Peer
	report   Report
	traffic  int64 // Tunnel.Traffic, 0 if unknown
}

// plan decides everything and changes nothing.
func (h *Host) plan(p pins, cfg Config, known memory) (*plan, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	pl := &plan{cfg: cfg, report: Report{Device: cfg.Device, Tunnel: unknown, Port: cfg.Port}}
	if err := pl.findDevice(p, known); err != nil {
		return nil, err
	}
	if err := h.findTunnel(pl, known); err != nil {
		return nil, err
	}
	if err := pl.choosePorts(p, known); err != nil {
		return nil, err
	}
	return pl, nil
}

func (pl *plan) findDevice(p pins, known memory) error {
	l, err := netlink.LinkByName(pl.cfg.Device)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return fmt.Errorf("%w: %s", ErrNoDevice, pl.cfg.Device)
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", pl.cfg.Device, err)
	}
	a := l.Attrs()
	switch {
	case a.Flags&net.FlagLoopback != 0:
		return fmt.Errorf("%s is the loopback device: what it carries reaches no NIC, so there is nothing to spread", a.Name)
	case l.Type() == "wireguard":
		return fmt.Errorf("%s is a tunnel itself: name the device that its outer packets leave through "+
			"(`ip route get PEER` shows it)", a.Name)
	}
	pl.index, pl.ethernet = a.Index, a.EncapType == "ether"
	if err := errors.Join(pl.onlyName(p), pl.onlyOthers(known.others)); err != nil {
		return err
	}
	if err := pl.keep(p); err != nil {
		return err
	}
	if l.Type() == "veth" && pl.cfg.Gather == GatherXDP {
		pl.warn("XDP on a veth turns TSO and UDP GSO off at its other end; --gather tc does not")
	}
	return nil
}

// onlyName refuses a device that has the programs already, from when it had another name: twice, they would count and
// gather twice.
func (pl *plan) onlyName(p pins) error {
	if p.dir == "" {
		return nil
	}
	names, err := p.devices()
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == pl.cfg.Device {
			continue
		}
		// What cannot be read is not attached by these pins, as far as anybody can say.
		if at, _ := p.attachedTo(name); slices.Contains(at, pl.index) {
			return fmt.Errorf("%s has the programs already, from when it was called %s: run `ropewalk spread detach %s`, and "+
				"try again", pl.cfg.Device, name, name)
		}
	}
	return nil
}

// onlyOthers refuses peers that the routes say are this host itself, or a broadcast address of one of its networks. That is
// said of the moment in which a peer is new: those that were none before are not asked for again, as there may be thousands.
func (pl *plan) onlyOthers(before map[netip.Addr]bool) error {
	for _, p := range pl.cfg.named() {
		if before[p.Addr()] {
			continue
		}
		routes, err := netlink.RouteGet(p.Addr().Unmap().WithZone("").AsSlice())
		if err != nil {
			continue // there may be a way to it later
		}
		for _, r := range routes {
			if r.Type == unix.RTN_LOCAL || r.Type == unix.RTN_BROADCAST {
				return fmt.Errorf("%s is no peer's address: it is this host's own, or broadcast", p.Addr())
			}
		}
		if before != nil {
			before[p.Addr()] = true
		}
	}
	return nil
}

// keep fills in what the Config leaves as it is on the device: another tunnel may have been attached to it otherwise.
func (pl *plan) keep(p pins) error {
	c := &pl.cfg
	if (c.Gather == "" || c.Gap == 0) && p.dir != "" {
		gather, gap, err := p.present(c.Device, pl.index)
		if err != nil {
			return err
		}
		c.Gather, c.Gap = cmp.Or(c.Gather, gather), cmp.Or(c.Gap, gap)
	}
	c.Gather, c.Gap = cmp.Or(c.Gather, GatherAuto), cmp.Or(c.Gap, spread.DefaultGap)
	return nil
}

// findTunnel finds the tunnel by its port, and its peers.
func (h *Host) findTunnel(pl *plan, known memory) error {
	tunnels, err := h.finder().Tunnels()
	if err != nil {
		return err
	}
	if pl.owners, err = h.owners(); err != nil {
		return err
	}
	owner, bound := pl.owners[pl.cfg.Port]
	candidates := pl.cfg.candidates()
	var found, inRange *Tunnel
	for i := range tunnels {
		switch t := &tunnels[i]; {
		case t.Port == 0:
		case t.Port == pl.cfg.Port && (bound || !t.Userspace):
			found = t
		case slices.Contains(candidates, t.Port):
			inRange = t
		}
	}
	if found == nil && !bound {
		return fmt.Errorf("%w listens on UDP port %d (%s)", ErrNoTunnel, pl.cfg.Port, namesOf(tunnels))
	}
	if inRange != nil {
		return fmt.Errorf("the ports %s hold the listen port %d of %s; choose others with --ports", pl.cfg.wanted(), inRange.Port, inRange.Name)
	}
	if err := pl.acceptTunnel(found, owner); err != nil {
		return err
	}
	if found != nil && !bound {
		pl.warn("%s has no socket on port %d in this network namespace: it is down, or was made in another one, through which "+
			"its packets then go", found.Name, pl.cfg.Port)
	}
	if found != nil {
		pl.traffic = found.Traffic
	}
	pl.choosePeers(found, known)
	return nil
}

func (h *Host) finder() Finder {
	if h.Tunnels == nil {
		return WireGuard{}
	}
	return h.Tunnels
}

// acceptTunnel refuses what cannot be spread. A nil tunnel stands for a socket that nothing is known of but its owner.
func (pl *plan) acceptTunnel(t *Tunnel, owner udpOwner) error {
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
	if process != "" && pl.cfg.Mark == 0 {
		return fmt.Errorf("UDP port %d belongs to %s, not to the kernel's WireGuard: all its packets carry the hash of its "+
			"socket, and would take one port; if it puts the flow into bits of its packets' mark, name those with --mark "+
			"(`ropewalk run` needs none of this: it spreads by itself)", pl.cfg.Port, process)
	}
	if t != nil || len(pl.cfg.named()) > 0 {
		return nil
	}
	if process == "" {
		process = "the kernel, but to no device of this network namespace (a WireGuard device that was moved to another cannot " +
			"be asked from here)"
	}
	return fmt.Errorf("UDP port %d belongs to %s: its peers are not known; name them with --peer", pl.cfg.Port, process)
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

// choosePorts fills in the tunnel.
func (pl *plan) choosePorts(p pins, known memory) error {
	if err := pl.cfg.checkEphemeral(); err != nil {
		return err
	}
	others, own, err := p.others(pl.cfg.Port)
	if err != nil {
		return err
	}
	taken := claims{}
	for port := range pl.owners {
		taken[port] = "a UDP socket of this host"
	}
	for _, t := range others {
		for _, port := range t.Lanes {
			taken[port] = fmt.Sprintf("the tunnel on port %d", t.Port)
		}
	}
	if pl.cfg.Plan == nil && known.run != nil {
		own = known.run.among(own)
	}
	lanes, err := taken.lanes(pl.cfg, own)
	if err != nil {
		return err
	}
	if known.run != nil {
		*known.run = lanes
	}
	pl.report.Lanes = lanes
	pl.tunnel = datapath.Tunnel{Port: pl.cfg.Port, Lanes: pl.giveLanes(taken), MarkMask: pl.cfg.Mark}
	return nil
}

// giveLanes gives each peer that is spread to its ports, and returns all of them, in ascending order.
func (pl *plan) giveLanes(taken claims) []uint16 {
	used, without := map[uint16]bool{}, map[uint16][]netip.AddrPort{}
	note := func(ports []uint16) {
		for _, p := range ports {
			used[p] = true
		}
	}
	note(pl.report.Lanes)
	for i := range pl.peers {
		p := &pl.peers[i]
		if _, isQuiet := slices.BinarySearchFunc(pl.report.Quiet, p.Endpoint, netip.AddrPort.Compare); isQuiet {
			continue
		}
		p.Lanes = pl.report.Lanes
		plan, planned := pl.cfg.PlanOf[p.Endpoint]
		if !planned {
			continue
		}
		if port, who := taken.among(plan); who != "" {
			without[port] = append(without[port], p.Endpoint)
			continue
		}
		p.Lanes = plan
		note(plan)
	}
	for _, port := range slices.Sorted(maps.Keys(without)) {
		pl.warn("port %d belongs to %s: peers that plan it (%d, the first at %s) get the same ports as those that plan nothing",
			port, taken[port], len(without[port]), without[port][0])
	}
	return slices.Sorted(maps.Keys(used))
}

func (h *Host) owners() (map[uint16]udpOwner, error) {
	if h.noProc != nil {
		return h.noProc, nil
	}
	return udpPorts()
}

func (pl *plan) warn(format string, args ...any) {
	pl.report.Warnings = append(pl.report.Warnings, fmt.Sprintf(format, args...))
}

// choosePeers takes the peers named, or else those of the tunnel that have an endpoint. Who is named as both is quiet.
func (pl *plan) choosePeers(t *Tunnel, known memory) {
	quiet, endpoints := pl.endpoints(pl.cfg.Quiet), pl.endpoints(pl.cfg.Peers)
	if len(pl.cfg.named()) == 0 {
		endpoints = pl.tunnelPeers(t, known)
	}
	quiet = sorted(quiet)
	endpoints = slices.DeleteFunc(endpoints, func(e netip.AddrPort) bool {
		_, isQuiet := slices.BinarySearchFunc(quiet, e, netip.AddrPort.Compare)
		return isQuiet
	})
	endpoints = sorted(endpoints)
	pl.report.Peers, pl.report.Quiet = endpoints, quiet
	for _, e := range sorted(slices.Concat(endpoints, quiet)) {
		pl.peers = append(pl.peers, datapath.Peer{Tunnel: pl.cfg.Port, Endpoint: e, Gather: pl.cfg.portsOf(e)})
	}
}

// endpoints completes those of a Config.
func (pl *plan) endpoints(named []netip.AddrPort) (all []netip.AddrPort) {
	for _, e := range named {
		all = append(all, netip.AddrPortFrom(e.Addr().Unmap().WithZone(""), cmp.Or(e.Port(), pl.cfg.Port)))
	}
	return all
}

// sorted orders endpoints and leaves out what is there twice.
func sorted(endpoints []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	return slices.Compact(endpoints)
}

// tunnelPeers returns the canonical endpoints of a tunnel's peers. Of several at one address only that can be said that
// a NAT is between: they are left alone.
func (pl *plan) tunnelPeers(t *Tunnel, known memory) (endpoints []netip.AddrPort) {
	at := map[netip.Addr]int{}
	for _, p := range t.Peers {
		if p.Endpoint.IsValid() {
			at[p.Endpoint.Addr()]++
		}
	}
	for _, p := range t.Peers {
		switch {
		case !p.Endpoint.IsValid():
			pl.skip(p, "it has no endpoint yet")
		case at[p.Endpoint.Addr()] > 1:
			pl.skip(p, fmt.Sprintf("other peers have its address %s too, which is then a NAT's", p.Endpoint.Addr()))
		default:
			endpoints = append(endpoints, pl.canonical(p, known))
		}
	}
	return endpoints
}

// memory is what is known of canonical ports from before.
type memory struct {
	ports map[string]uint16     // by the peer's key, kept over calls; may be nil
	at    map[netip.Addr]uint16 // by the peer's address, from the device's present state
	// others are addresses that are none of this host's, kept over calls; may be nil.
	others map[netip.Addr]bool
	run    *run // kept over calls; may be nil
}

// canonical returns a peer's endpoint with its canonical port. A peer that spreads already was perhaps heard last from a
// lane port. The tunnel then does not know the other any more: it is the one known from before, or as good as certainly
// the same as ours.
func (pl *plan) canonical(p TunnelPeer, known memory) netip.AddrPort {
	if !pl.cfg.PeerPorts.Contains(p.Endpoint.Port()) {
		if known.ports != nil {
			known.ports[p.Key] = p.Endpoint.Port()
		}
		return p.Endpoint
	}
	port, ok := known.ports[p.Key]
	if !ok {
		port, ok = known.at[p.Endpoint.Addr()]
	}
	if !ok {
		port = pl.cfg.Port
		pl.warn("peer %s was heard last from a lane port (%s); its listen port is taken to be %d, as here. If it is not, name "+
			"it with --peer %s:PORT", p.Key, p.Endpoint, port, p.Endpoint.Addr())
	}
	return netip.AddrPortFrom(p.Endpoint.Addr(), port)
}

func (pl *plan) skip(p TunnelPeer, why string) {
	pl.report.Skipped = append(pl.report.Skipped, Skipped{Key: p.Key, Why: why})
}
