// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// privileged is where the ports end that need CAP_NET_BIND_SERVICE (ip_unprivileged_port_start's default).
const privileged = 1024

// candidates are the ports that the lanes are taken from.
func (c *Config) candidates() []uint16 {
	if c.Plan != nil {
		return c.Plan
	}
	return c.Ports.All()
}

// wanted is how the candidates were asked for: "61000-61999", "61003,61017".
func (c *Config) wanted() string {
	if c.Plan == nil {
		return c.Ports.String()
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(c.Plan), "[]"), " ", ",")
}

func (c *Config) checkPorts() error {
	ports := c.candidates()
	switch n := len(ports); {
	case n == 0:
		return invalid("the ports %s are no range", c.Ports)
	case slices.Min(ports) < privileged:
		return invalid("the ports %s are partly privileged (below %d), where firewalls and services expect others; "+
			"choose higher ones with --ports", c.wanted(), privileged)
	case slices.Contains(ports, c.Port):
		return invalid("the ports %s hold the tunnel's listen port %d, which handshakes keep for themselves; choose others "+
			"with --ports", c.wanted(), c.Port)
	case c.Lanes < 0 || c.Lanes > spread.MaxPorts:
		return invalid("%d lanes: want 1 to %d", c.Lanes, spread.MaxPorts)
	case c.Lanes > n:
		return invalid("%d lanes need as many ports, and %s are %d; widen --ports or lower --lanes", c.Lanes, c.Ports, n)
	}
	return nil
}

// claims is who has which of the host's UDP ports.
type claims map[uint16]string

// free returns the first run of n ports in the range that nobody has.
func (c claims) free(r spread.Ports, n int) (spread.Ports, bool) {
	run := 0
	for p := int(r.First); p <= int(r.Last); p++ {
		run++
		if c[uint16(p)] != "" {
			run = 0
		}
		if run == n {
			return spread.Ports{First: uint16(p - n + 1), Last: uint16(p)}, true
		}
	}
	return spread.Ports{}, false
}

// first returns the first port of the range that somebody has, and who.
func (c claims) first(r spread.Ports) (uint16, string) {
	for p := int(r.First); p <= int(r.Last); p++ {
		if who := c[uint16(p)]; who != "" {
			return uint16(p), who
		}
	}
	return 0, ""
}

// among returns the first of some ports that somebody has, and who.
func (c claims) among(ports []uint16) (uint16, string) {
	for _, p := range ports {
		if who := c[p]; who != "" {
			return p, who
		}
	}
	return 0, ""
}

// lanes chooses the ports that data messages leave from. current is what the tunnel has, if it has any, and it keeps
// that when it may. Without a wish for a number, there are as many as fit.
func (c claims) lanes(cfg Config, current []uint16) ([]uint16, error) {
	if cfg.Plan != nil {
		for _, p := range cfg.Plan {
			if who := c[p]; who != "" && !slices.Contains(current, p) {
				return nil, fmt.Errorf("planned port %d belongs to %s; have the receiver plan others", p, who)
			}
		}
		return cfg.Plan, nil
	}
	n := cfg.Lanes
	if n == 0 {
		n = min(cfg.Ports.Len(), spread.MaxPorts)
	}
	if len(current) == n || cfg.PlanOf != nil { // then there are ports of peers' plans among them
		if run, ok := neighbours(current, cfg.Ports, n); ok {
			return run, nil
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
	p, who := c.first(cfg.Ports)
	return nil, fmt.Errorf("no %d neighbouring ports of %s are free (%d belongs to %s); choose others with "+
		"--ports, or fewer with --lanes", max(n, 1), cfg.Ports, p, who)
}

// run is what those peers had at last that plan nothing. Others' plans may make up another one, in front of it.
type run []uint16

// among returns the run if the tunnel has all of it still, or else all that the tunnel has, in ascending order.
func (r run) among(all []uint16) []uint16 {
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

// neighbours returns the first n of some ports in ascending order that are neighbours in the range.
func neighbours(ports []uint16, r spread.Ports, n int) ([]uint16, bool) {
	run := 0
	for i, p := range ports {
		switch {
		case !r.Contains(p):
			run = 0
		case run > 0 && ports[i-1]+1 == p:
			run++
		default:
			run = 1
		}
		if run == n {
			return ports[i+1-n : i+1], true
		}
	}
	return nil, false
}

// around returns the range from the first to the last of ports in ascending order.
func around(ports []uint16) spread.Ports {
	if len(ports) == 0 {
		return spread.Ports{}
	}
	return spread.Ports{First: ports[0], Last: ports[len(ports)-1]}
}

// checkEphemeral refuses ports that the kernel may give to any socket by itself: while such a socket has a lane port, it
// shares it with the tunnel.
func (c *Config) checkEphemeral() error {
	local, err := hostnet.ReadLocalPorts()
	if err != nil {
		return err
	}
	given := local.Among(c.candidates())
	if given.Len() == 0 {
		return nil
	}
	return fmt.Errorf("the ports %s overlap the ephemeral ports %s (net.ipv4.ip_local_port_range), which the kernel hands to "+
		"any socket; choose others with --ports, or keep them from it: %s", c.wanted(), local.Range, local.Reserving(given))
}
