// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// firstUnprivileged is the first port that needs no CAP_NET_BIND_SERVICE (default of ip_unprivileged_port_start).
const firstUnprivileged = 1024

// candidates returns the ports from which lane ports are chosen.
func (c *Config) candidates() []uint16 {
	if c.PortPlan != nil {
		return c.PortPlan
	}
	return c.Ports.All()
}

// portsString formats the candidates: a configured range as "61000-61999", the ports of a plan as "61003,61017".
func (c *Config) portsString() string {
	if c.PortPlan == nil {
		return c.Ports.String()
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(c.PortPlan), "[]"), " ", ",")
}

func (c *Config) checkPorts() error {
	ports := c.candidates()
	switch n := len(ports); {
	case n == 0:
		return invalid("the ports %s are an empty range; the first must not be above the last", c.portsString())
	case slices.Min(ports) < firstUnprivileged:
		return invalid("the ports %s include privileged ones (below %d), which firewalls and services use for other purposes; "+
			"choose higher ones with --ports", c.portsString(), firstUnprivileged)
	case slices.Contains(ports, c.Port):
		return invalid("the ports %s contain the tunnel's listen port %d, which is reserved for handshakes; choose others "+
			"with --ports", c.portsString(), c.Port)
	case c.Lanes < 0 || c.Lanes > spread.MaxPorts:
		return invalid("%d lanes: want 1 to %d, or 0 to choose the number", c.Lanes, spread.MaxPorts)
	case c.Lanes > n:
		return invalid("%d lanes need %[1]d ports, but %s has only %d; widen --ports or lower --lanes", c.Lanes, c.portsString(), n)
	}
	return nil
}

// portOwners maps the host's used UDP ports to a description of their owner.
type portOwners map[uint16]string

// free returns the lowest range of n unused ports in r.
func (o portOwners) free(r spread.Ports, n int) (spread.Ports, bool) {
	length := 0
	for p := int(r.First); p <= int(r.Last); p++ {
		length++
		if o[uint16(p)] != "" {
			length = 0
		}
		if length == n {
			return spread.Ports{First: uint16(p - n + 1), Last: uint16(p)}, true
		}
	}
	return spread.Ports{}, false
}

// firstTaken returns the first used port of the range, and its owner.
func (o portOwners) firstTaken(r spread.Ports) (uint16, string) {
	for p := int(r.First); p <= int(r.Last); p++ {
		if who := o[uint16(p)]; who != "" {
			return uint16(p), who
		}
	}
	return 0, ""
}

// firstTakenOf returns the first used port of a list, and its owner.
func (o portOwners) firstTakenOf(ports []uint16) (uint16, string) {
	for _, p := range ports {
		if who := o[p]; who != "" {
			return p, who
		}
	}
	return 0, ""
}

// chooseLanePorts chooses the source ports of data messages. The tunnel keeps its current ports if possible: they are its own, so their
// owner is not checked. If the Config sets no number of lanes, the number is halved until a range of so many ports is free.
func (o portOwners) chooseLanePorts(cfg Config, current []uint16) ([]uint16, error) {
	if cfg.PortPlan != nil {
		for _, p := range cfg.PortPlan {
			if who := o[p]; who != "" {
				return nil, fmt.Errorf("planned port %d belongs to %s; the peer must plan other ports", p, who)
			}
		}
		return cfg.PortPlan, nil
	}
	n := cfg.Lanes
	if n == 0 {
		n = min(cfg.Ports.Len(), spread.MaxPorts)
	}
	if len(current) == n || cfg.PeerPlans != nil { // with PeerPlans, current also holds the plans' ports, so its length says nothing
		if ports, ok := contiguous(current, cfg.Ports, n); ok {
			return ports, nil
		}
	}
	for ; n > 0; n /= 2 {
		if r, ok := o.free(cfg.Ports, n); ok {
			return r.All(), nil
		}
		if cfg.Lanes != 0 {
			break
		}
	}
	p, who := o.firstTaken(cfg.Ports)
	if n <= 1 {
		return nil, fmt.Errorf("no port of %s is free (%d belongs to %s); choose others with --ports", cfg.Ports, p, who)
	}
	return nil, fmt.Errorf("no %d contiguous ports of %s are free (%d belongs to %s); choose others with "+
		"--ports, or fewer with --lanes", n, cfg.Ports, p, who)
}

// sharedPorts are the ports that peers without a port plan share. They are remembered, because
// they cannot be found among the tunnel's ports. The ports of peers' plans may form a contiguous
// range of lower ports, which would be taken for them.
type sharedPorts []uint16

// keepIn returns the shared ports if the tunnel still has all of them, otherwise the tunnel's ports, which must be sorted.
func (r sharedPorts) keepIn(tunnel []uint16) []uint16 {
	if len(r) == 0 {
		return tunnel
	}
	for _, p := range r {
		if _, has := slices.BinarySearch(tunnel, p); !has {
			return tunnel
		}
	}
	return r
}

// contiguous returns the first n consecutive port numbers within r among ports, which must be sorted.
func contiguous(ports []uint16, r spread.Ports, n int) ([]uint16, bool) {
	length := 0
	for i, p := range ports {
		switch {
		case !r.Contains(p):
			length = 0
		case length > 0 && ports[i-1]+1 == p:
			length++
		default:
			length = 1
		}
		if length == n {
			return ports[i+1-n : i+1], true
		}
	}
	return nil, false
}

// portSpan returns the range from the first to the last of sorted ports.
func portSpan(ports []uint16) spread.Ports {
	if len(ports) == 0 {
		return spread.Ports{}
	}
	return spread.Ports{First: ports[0], Last: ports[len(ports)-1]}
}

// checkEphemeral returns an error for ports that the kernel may assign to any socket. Such a socket would share a lane port
// with the tunnel.
func (c *Config) checkEphemeral() error {
	local, err := hostnet.ReadLocalPorts()
	if err != nil {
		return err
	}
	overlap := local.EphemeralRange(c.candidates())
	if overlap.Len() == 0 {
		return nil
	}
	return fmt.Errorf("the ports %s overlap the ephemeral ports %s (net.ipv4.ip_local_port_range), which the kernel may assign to "+
		"any socket; choose others with --ports, or reserve them: %s", c.portsString(), local.Range, local.ReserveCommand(overlap))
}
