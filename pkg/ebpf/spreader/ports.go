// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// privileged is the first port that needs no CAP_NET_BIND_SERVICE (default of ip_unprivileged_port_start).
const privileged = 1024

// candidates returns the ports from which lanes are chosen.
func (c *Config) candidates() []uint16 {
	if c.PortPlan != nil {
		return c.PortPlan
	}
	return c.Ports.All()
}

// portsString formats the candidates as they were configured: "61000-61999" or "61003,61017".
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
		return invalid("the ports %s are not a range", c.Ports)
	case slices.Min(ports) < privileged:
		return invalid("the ports %s include privileged ones (below %d), which firewalls and services reserve for others; "+
			"choose higher ones with --ports", c.portsString(), privileged)
	case slices.Contains(ports, c.Port):
		return invalid("the ports %s contain the tunnel's listen port %d, which is reserved for handshakes; choose others "+
			"with --ports", c.portsString(), c.Port)
	case c.Lanes < 0 || c.Lanes > spread.MaxPorts:
		return invalid("%d lanes: want 1 to %d", c.Lanes, spread.MaxPorts)
	case c.Lanes > n:
		return invalid("%d lanes need as many ports, but %s are %d; widen --ports or lower --lanes", c.Lanes, c.Ports, n)
	}
	return nil
}

// portOwners maps the host's used UDP ports to a description of their owner.
type portOwners map[uint16]string

// free returns the first n contiguous ports in the range that are unused.
func (c portOwners) free(r spread.Ports, n int) (spread.Ports, bool) {
	length := 0
	for p := int(r.First); p <= int(r.Last); p++ {
		length++
		if c[uint16(p)] != "" {
			length = 0
		}
		if length == n {
			return spread.Ports{First: uint16(p - n + 1), Last: uint16(p)}, true
		}
	}
	return spread.Ports{}, false
}

// firstTaken returns the first used port of the range, and its owner.
func (c portOwners) firstTaken(r spread.Ports) (uint16, string) {
	for p := int(r.First); p <= int(r.Last); p++ {
		if who := c[uint16(p)]; who != "" {
			return uint16(p), who
		}
	}
	return 0, ""
}

// firstTakenOf returns the first used port of a list, and its owner.
func (c portOwners) firstTakenOf(ports []uint16) (uint16, string) {
	for _, p := range ports {
		if who := c[p]; who != "" {
			return p, who
		}
	}
	return 0, ""
}

// chooseLanes chooses the source ports of data messages. current are the tunnel's present ones, which it keeps if possible.
// If the Config sets no number of lanes, it chooses as many as are free.
func (c portOwners) chooseLanes(cfg Config, current []uint16) ([]uint16, error) {
	if cfg.PortPlan != nil {
		for _, p := range cfg.PortPlan {
			if who := c[p]; who != "" && !slices.Contains(current, p) {
				return nil, fmt.Errorf("planned port %d belongs to %s; the receiver must plan other ports", p, who)
			}
		}
		return cfg.PortPlan, nil
	}
	n := cfg.Lanes
	if n == 0 {
		n = min(cfg.Ports.Len(), spread.MaxPorts)
	}
	if len(current) == n || cfg.PeerPlans != nil { // then current also contains ports of peers' plans
		if ports, ok := contiguous(current, cfg.Ports, n); ok {
			return ports, nil
		}
	}
	for ; n > 0; n /= 2 {
		if r, ok := c.free(cfg.Ports, n); ok {
			return r.All(), nil
		}
		if cfg.Lanes != 0 {
			break
		}
	}
	p, who := c.firstTaken(cfg.Ports)
	return nil, fmt.Errorf("no %d contiguous ports of %s are free (%d belongs to %s); choose others with "+
		"--ports, or fewer with --lanes", max(n, 1), cfg.Ports, p, who)
}

// sharedPorts are the ports that peers without a port plan share. Ports of peers' plans may form another contiguous range
// before them.
type sharedPorts []uint16

// keepIn returns the shared ports if all contains them, or else all. all must be sorted.
func (r sharedPorts) keepIn(all []uint16) []uint16 {
	for _, p := range r {
		if _, has := slices.BinarySearch(all, p); !has {
			return all
		}
	}
	if len(r) == 0 {
		return all
	}
	return r
}

// contiguous returns the first n contiguous ports in the range, out of sorted ports.
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
	given := local.EphemeralRange(c.candidates())
	if given.Len() == 0 {
		return nil
	}
	return fmt.Errorf("the ports %s overlap the ephemeral ports %s (net.ipv4.ip_local_port_range), which the kernel assigns to "+
		"any socket; choose others with --ports, or reserve them: %s", c.portsString(), local.Range, local.ReserveCommand(given))
}
