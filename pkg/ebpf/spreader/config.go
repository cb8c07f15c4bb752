// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Host attaches to devices of the calling thread's network namespace. The zero Host is ready for use. Several goroutines
// and processes may use it at the same time.
type Host struct {
	// FS is the BPF file system to pin in. Empty: hook.BPFFS, which mounts one if there is none.
	FS string
	// Tunnels lists the tunnels. Nil: WireGuard.
	Tunnels Finder

	kind         hook.Kind           // for tests: the kind of the tc hooks
	pollInterval time.Duration       // for tests: how often Watch polls; 0: defaultPollInterval
	refusedPause time.Duration       // for tests: how long a refused device is left out; 0: defaultRefusedPause
	lockTimeout  time.Duration       // for tests: how long to wait for other processes; 0: defaultLockTimeout
	beforeStep   func(string) error  // for tests: called before each step of Attach
	udpOwners    map[uint16]udpOwner // for tests: the owners of UDP ports, in place of /proc
}

// Gather is the hook at which the gather program is attached.
type Gather string

// The modes. Auto is GatherTC, since tc ingress disables no offloads. XDP costs less per packet,
// but a driver may disable offloads for it. On a veth these are TSO and UDP GSO of the other end,
// on virtio_net the guest's receive offloads (TSO, UFO, LRO).
const (
	GatherAuto Gather = "auto"
	GatherTC   Gather = "tc"
	GatherXDP  Gather = "xdp"
)

// Config configures the spreading of one tunnel on one device.
type Config struct {
	// Device is the device through which the tunnel's outer packets leave. It is not the tunnel's own device.
	Device string
	// Port is the tunnel's listen port.
	Port uint16
	// Peers are the peers' endpoints. A port of 0 means Port, and a link-local address without a zone is on Device. Empty: the present endpoints of the tunnel's peers.
	Peers []netip.AddrPort
	// GatherOnly are endpoints of further peers, from which packets are gathered but to which none
	// are spread. These peers have not announced yet that they gather. If GatherOnly is set, Peers
	// must name all others: the tunnel's peers are not used.
	GatherOnly []netip.AddrPort
	// Lanes is the number of ports to spread over, at most spread.MaxPorts. Zero: spread.MaxPorts, halved until so many contiguous
	// ports are free.
	Lanes int
	// Ports is the range of source ports. The lowest free contiguous ones are used. Zero: spread.DefaultPorts.
	Ports spread.Ports
	// PortPlan is the port plan of a receiver: the exact source ports, in order. It replaces Lanes and Ports. Ports between them
	// are left to others.
	PortPlan []uint16
	// PeerPorts is the range of the peers' lane ports. Zero: Ports, or spread.DefaultPorts with a PortPlan.
	PeerPorts spread.Ports
	// PeerPortRanges overrides PeerPorts for single endpoints of Peers and GatherOnly, with their port.
	PeerPortRanges map[netip.AddrPort]spread.Ports
	// PeerPlans holds the port plans of single endpoints of Peers, in order, out of Ports. It must
	// be empty if PortPlan is set. If a planned port belongs to another socket, the peer uses the
	// same ports as peers without a plan. An empty map, unlike nil, means that the tunnel may have
	// ports of former plans besides the shared ones.
	PeerPlans map[netip.AddrPort][]uint16
	// Gather is the hook of the gather program, for all tunnels on the device. Empty: unchanged, or GatherAuto if nothing is
	// attached.
	Gather Gather
	// RestartStalledPeers makes Watch and Follow remove and add again a peer from which the
	// kernel's WireGuard receives only handshakes. They do so at most once in ten minutes per
	// call. The peer keeps its configuration and loses its session and its counters.
	RestartStalledPeers bool
	// AnySocket accepts a port that a process owns. It is for tests, whose sockets stand in for
	// the kernel's WireGuard. A flow is the packet's hash. The kernel's WireGuard sets it from the
	// inner packet, and a socket from its own hash (sk_txhash).
	AnySocket bool
	// Gap is the flowlet gap: how long a flow must be silent before it may change its source port.
	// It holds for all tunnels of the network namespace. Zero: unchanged, at first
	// spread.DefaultGap.
	Gap time.Duration
}

// Errors that callers may test for with errors.Is.
var (
	// ErrNoDevice: the device does not exist.
	ErrNoDevice = errors.New("no such device")
	// ErrNoTunnel: no tunnel has that listen port.
	ErrNoTunnel = errors.New("no tunnel")
	// ErrInvalid: the Config is invalid on every host.
	ErrInvalid = errors.New("invalid")
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w%.0w", fmt.Errorf(format, args...), ErrInvalid)
}

// withDefaults returns the Config with defaults for all fields but Gather and Gap, or an error if it is invalid.
func (c Config) withDefaults() (Config, error) {
	if c.Port == 0 {
		return c, invalid("the tunnel's listen port is missing: name it with --port (`wg show all listen-port` lists them)")
	}
	switch c.Gather {
	case "", GatherAuto, GatherTC, GatherXDP:
	default:
		return c, invalid("invalid gather mode %q: want auto, tc or xdp", c.Gather)
	}
	if c.Gap != 0 && (c.Gap < time.Millisecond || c.Gap > time.Minute) {
		return c, invalid("invalid gap %s: want 1ms to 1m", c.Gap)
	}
	if err := c.setDefaultPorts(); err != nil {
		return c, err
	}
	if c.PeerPorts == (spread.Ports{}) {
		c.PeerPorts = c.Ports
		if c.PortPlan != nil {
			c.PeerPorts = spread.DefaultPorts
		}
	}
	if err := c.checkPorts(); err != nil {
		return c, err
	}
	if err := c.checkPeerPlans(); err != nil {
		return c, err
	}
	return c, c.checkPeers()
}

// configuredPeers returns the peers that the Config names.
func (c *Config) configuredPeers() []netip.AddrPort { return slices.Concat(c.Peers, c.GatherOnly) }

// broadcast is the limited broadcast address (RFC 919, section 7).
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// mayBeRemote reports whether an address may be another host's. Link-local ones are in fe80::/64
// (RFC 4291, section 2.5.6).
func mayBeRemote(a netip.Addr) bool {
	if b := a.As16(); hasZone(a) && [6]byte(b[2:8]) != [6]byte{} {
		return false
	}
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != broadcast
}

// endpoint returns an endpoint of the Config as it is used. It has Port in place of port 0, and
// the Device if it is link-local and names none.
func (c *Config) endpoint(e netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(zonedAddr(e.Addr(), cmp.Or(e.Addr().Zone(), c.Device)), cmp.Or(e.Port(), c.Port))
}

// checkPeers returns an error for an invalid peer address, and for lane ports that contain a peer's listen port.
func (c *Config) checkPeers() error {
	if c.PeerPorts.Len() == 0 {
		return invalid("the peers' ports %s are not a range", c.PeerPorts)
	}
	if n := c.PeerPorts.Len(); n > programs.MaxGather {
		return invalid("the %d ports of peers %s exceed the maximum of %d", n, c.PeerPorts, programs.MaxGather)
	}
	for _, p := range c.configuredPeers() {
		at := c.endpoint(p)
		if !mayBeRemote(at.Addr()) {
			return invalid("%s is not a valid peer address", p.Addr())
		}
		if ports := c.portsOf(at); ports.Contains(at.Port()) {
			return invalid("the peers' lane ports %s contain the listen port of peer %s; choose others with "+
				"--peer-ports, or with --ports at both ends", ports, at)
		}
	}
	if len(c.configuredPeers()) == 0 && c.PeerPorts.Contains(c.Port) {
		return invalid("the peers' lane ports %s contain the listen port %d; choose others with --peer-ports", c.PeerPorts, c.Port)
	}
	return nil
}

// portsOf returns the range of a peer's lane ports.
func (c *Config) portsOf(peer netip.AddrPort) spread.Ports {
	if ports, ok := c.PeerPortRanges[peer]; ok {
		return ports
	}
	return c.PeerPorts
}

// setDefaultPorts sets Lanes from the port plan, or else the default range of ports.
func (c *Config) setDefaultPorts() error {
	if c.PortPlan == nil {
		if c.Ports == (spread.Ports{}) {
			c.Ports = spread.DefaultPorts
		}
		return nil
	}
	if len(c.PortPlan) == 0 || len(c.PortPlan) > spread.MaxPorts {
		return invalid("%d planned ports: want 1 to %d", len(c.PortPlan), spread.MaxPorts)
	}
	if c.Lanes != 0 && c.Lanes != len(c.PortPlan) {
		return invalid("%d lanes, but %d planned ports", c.Lanes, len(c.PortPlan))
	}
	c.Lanes = len(c.PortPlan)
	return checkDistinct(c.PortPlan)
}

func checkDistinct(plan []uint16) error {
	for i, p := range plan {
		if slices.Contains(plan[:i], p) {
			return invalid("planned port %d occurs twice", p)
		}
	}
	return nil
}

// checkPeerPlans validates the port plans of single peers.
func (c *Config) checkPeerPlans() error {
	if len(c.PeerPlans) > 0 && c.PortPlan != nil {
		return invalid("a port plan for all peers excludes port plans of single peers")
	}
	for peer, plan := range c.PeerPlans {
		if len(plan) == 0 || len(plan) > spread.MaxPorts {
			return invalid("%d ports in the port plan of %s: want 1 to %d", len(plan), peer, spread.MaxPorts)
		}
		for _, p := range plan {
			if !c.Ports.Contains(p) {
				return invalid("port %d in the port plan of %s is not in the range %s", p, peer, c.Ports)
			}
		}
		if err := checkDistinct(plan); err != nil {
			return err
		}
	}
	return nil
}
