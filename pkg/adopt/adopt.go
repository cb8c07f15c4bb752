// SPDX-License-Identifier: Apache-2.0

// Package adopt spreads and gathers the packets of a WireGuard that ropewalk does not own, above all the kernel's: on the
// device that its outer packets leave through, it attaches the programs of pkg/datapath, and tells them the tunnel's
// port, its peers and the ports to spread over. All it makes is pinned below ropewalk/spread in a BPF file system, by
// network namespace and device. There is no other record: Status and Detach need nothing else, and a new version
// replaces the programs in place.
//
// Both ends of a tunnel should have it, with the same range of ports. Towards an end that does not gather, the tunnel
// works, and the endpoint that this end sees moves with each message. It is not for tunnels through a NAT, which drops
// what comes from ports that it has not seen.
package adopt

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Host is where tunnels are adopted: the network namespace of the calling thread. The zero Host is ready for use, by
// several goroutines too, and processes keep out of each other's way.
type Host struct {
	// FS is the BPF file system to pin in; empty: hook.FS, which mounts one where there is none.
	FS string
	// Tunnels finds the tunnels; nil: WireGuard.
	Tunnels Finder

	kind     hook.Kind           // for tests: what holds the tc programs
	refresh  time.Duration       // for tests: how often Watch looks; 0: refreshEvery
	patience time.Duration       // for tests: how long to wait for other processes; 0: lockPatience
	between  func(string) error  // for tests: called before each step of Attach
	noProc   map[uint16]udpOwner // for tests: who has which port, instead of what /proc says
}

// Gather is how gathering is attached.
type Gather string

// The ways. Auto is GatherTC: tc ingress turns nothing off. XDP is cheaper per packet and yet only for those who ask,
// since a driver may pay for it: attached to a veth it turns TSO and UDP GSO of the other end off, on virtio_net the
// guest's receive offloads (TSO, UFO, LRO). GatherNone is for a peer that never spreads and, which it does only if it
// gathers, never answers to a lane port.
const (
	GatherAuto Gather = "auto"
	GatherTC   Gather = "tc"
	GatherXDP  Gather = "xdp"
	GatherNone Gather = "none"
)

// Config is what to attach.
type Config struct {
	// Device is the one that the tunnel's outer packets leave through, not the tunnel's own.
	Device string
	// Port is the tunnel's listen port.
	Port uint16
	// Peers are the peers' endpoints; a port of 0 stands for Port. None: what the tunnel says, at the moment.
	Peers []netip.AddrPort
	// Quiet are endpoints of further peers, which are gathered from and not spread towards: those that have not said yet
	// that they gather. With any, Peers are those named, none if there are none.
	Quiet []netip.AddrPort
	// Lanes is the number of ports to spread over, at most spread.MaxPorts; 0: as many as there are.
	Lanes int
	// Ports is the range that those are taken from: the first that nobody has. Zero: spread.DefaultPorts.
	Ports spread.Ports
	// Plan is the very ports, in order, as a receiver plans them, in place of Lanes and Ports. Those between them are left
	// to others.
	Plan []uint16
	// PeerPorts is the range of ports that peers spread over. Zero: Ports, or spread.DefaultPorts with a Plan.
	PeerPorts spread.Ports
	// PortsOf is the same for single endpoints of Peers and Quiet, with their port, where that is another range.
	PortsOf map[netip.AddrPort]spread.Ports
	// PlanOf are the very ports to take towards single endpoints of Peers, in order, as those plan them, out of Ports; with a
	// Plan there are none. Where one of them is somebody else's, the peer has the same ports as the others.
	// An empty map is not nil: it says that the tunnel may have ports of former plans, beside those that it keeps for all peers.
	PlanOf map[netip.AddrPort][]uint16
	// Gather is how gathering is attached, for all tunnels on the device. Empty: as it is, or GatherAuto where nothing is
	// attached.
	Gather Gather
	// Mark says which bits of a packet's mark (SO_MARK) hold its flow. Zero: the flow is the hash that the kernel's
	// WireGuard leaves on its packets.
	Mark uint32
	// Gap is how long a flow must have been silent to take another port, for all tunnels on the device. Zero: as it is, or
	// spread.DefaultGap where nothing is attached.
	Gap time.Duration
}

// Errors that a caller may want to tell from others.
var (
	// ErrNoDevice: there is no such device now.
	ErrNoDevice = errors.New("no such device")
	// ErrNoTunnel: no tunnel has the port.
	ErrNoTunnel = errors.New("no tunnel")
	// ErrInvalid: the Config cannot be right on any host.
	ErrInvalid = errors.New("invalid")
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w%.0w", fmt.Errorf(format, args...), ErrInvalid)
}

// withDefaults returns the Config with what was left out but Gather and Gap, or what is wrong with it on any host.
func (c Config) withDefaults() (Config, error) {
	if c.Port == 0 {
		return c, invalid("the tunnel's listen port is missing: name it with --port (`wg show all listen-port` lists them)")
	}
	switch c.Gather {
	case "", GatherAuto, GatherTC, GatherXDP, GatherNone:
	default:
		return c, invalid("gathering by %q: want auto, tc, xdp or none", c.Gather)
	}
	if c.Gap != 0 && (c.Gap < time.Millisecond || c.Gap > time.Minute) {
		return c, invalid("a gap of %s: want 1ms to 1m", c.Gap)
	}
	if err := c.planPorts(); err != nil {
		return c, err
	}
	if c.PeerPorts == (spread.Ports{}) {
		c.PeerPorts = c.Ports
		if c.Plan != nil {
			c.PeerPorts = spread.DefaultPorts
		}
	}
	if err := c.checkPorts(); err != nil {
		return c, err
	}
	if err := c.checkPlans(); err != nil {
		return c, err
	}
	return c, c.checkPeers()
}

// named are the peers that the Config names.
func (c *Config) named() []netip.AddrPort { return slices.Concat(c.Peers, c.Quiet) }

// broadcast is the limited one (RFC 919, section 7).
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// checkPeers makes sure that each can be one, and that lane ports of peers can be told from their canonical ports.
func (c *Config) checkPeers() error {
	if c.PeerPorts.Len() == 0 {
		return invalid("the peers' ports %s are no range", c.PeerPorts)
	}
	for _, p := range c.named() {
		a := p.Addr().Unmap().WithZone("")
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a == broadcast {
			return invalid("%s is no peer's address", a)
		}
		if zone := p.Addr().Zone(); zone != "" && zone != c.Device {
			return invalid("peer %s is not on %s: its zone is of another device", p.Addr(), c.Device)
		}
		at := netip.AddrPortFrom(a, cmp.Or(p.Port(), c.Port))
		if ports := c.portsOf(at); ports.Contains(at.Port()) {
			return invalid("the ports %s that peers spread over hold the listen port of peer %s; choose others with "+
				"--peer-ports, or with --ports at both ends", ports, at)
		}
	}
	if len(c.named()) == 0 && c.PeerPorts.Contains(c.Port) {
		return invalid("the ports %s that peers spread over hold the listen port %d; choose others with --peer-ports", c.PeerPorts, c.Port)
	}
	return nil
}

// portsOf returns the ports that a peer spreads over.
func (c *Config) portsOf(peer netip.AddrPort) spread.Ports {
	if ports, ok := c.PortsOf[peer]; ok {
		return ports
	}
	return c.PeerPorts
}

// planPorts makes the number of lanes agree with the plan, if there is one; else there is a range.
func (c *Config) planPorts() error {
	if c.Plan == nil {
		if c.Ports == (spread.Ports{}) {
			c.Ports = spread.DefaultPorts
		}
		return nil
	}
	if len(c.Plan) == 0 || len(c.Plan) > spread.MaxPorts {
		return invalid("%d planned ports: want 1 to %d", len(c.Plan), spread.MaxPorts)
	}
	if c.Lanes != 0 && c.Lanes != len(c.Plan) {
		return invalid("%d lanes, but %d planned ports", c.Lanes, len(c.Plan))
	}
	c.Lanes = len(c.Plan)
	return checkDistinct(c.Plan)
}

func checkDistinct(plan []uint16) error {
	for i, p := range plan {
		if slices.Contains(plan[:i], p) {
			return invalid("planned port %d is named twice", p)
		}
	}
	return nil
}

// checkPlans makes sure that the plans of single peers can be followed.
func (c *Config) checkPlans() error {
	if len(c.PlanOf) > 0 && c.Plan != nil {
		return invalid("a plan for all, and others for single peers")
	}
	for peer, plan := range c.PlanOf {
		if len(plan) == 0 || len(plan) > spread.MaxPorts {
			return invalid("%d ports planned by %s: want 1 to %d", len(plan), peer, spread.MaxPorts)
		}
		for _, p := range plan {
			if !c.Ports.Contains(p) {
				return invalid("port %d, planned by %s, is not of %s", p, peer, c.Ports)
			}
		}
		if err := checkDistinct(plan); err != nil {
			return err
		}
	}
	return nil
}
