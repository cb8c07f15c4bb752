// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

// privileged is where the ports end that need CAP_NET_BIND_SERVICE (ip_unprivileged_port_start's default).
const privileged = 1024

func (c *Config) checkPorts() error {
	n := c.Ports.Len()
	switch {
	case n == 0:
		return invalid("the ports %s are no range", c.Ports)
	case c.Ports.First < privileged:
		return invalid("the ports %s are partly privileged (below %d), where firewalls and services expect others; "+
			"choose higher ones with --ports", c.Ports, privileged)
	case c.Ports.Contains(c.Port):
		return invalid("the ports %s hold the tunnel's listen port %d, which handshakes keep for themselves; choose others "+
			"with --ports", c.Ports, c.Port)
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

// lanes chooses the ports that data messages leave from. current is what the tunnel has, if it has any, and it keeps
// that when it may. Without a wish for a number, there are as many as fit.
func (c claims) lanes(cfg Config, current spread.Ports) (spread.Ports, []uint16, error) {
	if cfg.Plan != nil {
		for _, p := range cfg.Plan {
			if who := c[p]; who != "" && !current.Contains(p) {
				return spread.Ports{}, nil, fmt.Errorf("planned port %d belongs to %s; have the receiver plan others", p, who)
			}
		}
		return cfg.Ports, cfg.Plan, nil
	}
	n := cfg.Lanes
	if n == 0 {
		n = min(cfg.Ports.Len(), spread.MaxPorts)
	}
	if current.Len() == n && cfg.Ports.Contains(current.First) && cfg.Ports.Contains(current.Last) {
		return current, portsOf(current), nil
	}
	for ; n > 0; n /= 2 {
		if r, ok := c.free(cfg.Ports, n); ok {
			return r, portsOf(r), nil
		}
		if cfg.Lanes != 0 {
			break
		}
	}
	p, who := c.first(cfg.Ports)
	return spread.Ports{}, nil, fmt.Errorf("no %d neighbouring ports of %s are free (%d belongs to %s); choose others with "+
		"--ports, or fewer with --lanes", max(n, 1), cfg.Ports, p, who)
}

func portsOf(r spread.Ports) []uint16 {
	ports := make([]uint16, r.Len())
	for i := range ports {
		ports[i] = r.First + uint16(i)
	}
	return ports
}

// Where the kernel says which ports it hands out by itself (Linux's ip-sysctl documentation); IPv6 follows them too.
const (
	localPortRange     = "/proc/sys/net/ipv4/ip_local_port_range"
	localReservedPorts = "/proc/sys/net/ipv4/ip_local_reserved_ports"
)

// checkEphemeral refuses ports that the kernel may give to any socket by itself: while such a socket has a lane port, it
// shares it with the tunnel. Reserved ones it does not give.
func checkEphemeral(ports spread.Ports) error {
	text, err := os.ReadFile(localPortRange)
	if err != nil {
		return fmt.Errorf("reading the range of ephemeral ports: %w", err)
	}
	var local spread.Ports
	if _, err := fmt.Sscan(string(text), &local.First, &local.Last); err != nil {
		return fmt.Errorf("reading the range of ephemeral ports %q: %w", text, err)
	}
	if !ports.Overlaps(local) {
		return nil
	}
	both := spread.Ports{First: max(ports.First, local.First), Last: min(ports.Last, local.Last)}
	text, err = os.ReadFile(localReservedPorts)
	if err != nil {
		return fmt.Errorf("reading the reserved ports: %w", err)
	}
	if reserved(string(text), both) {
		return nil
	}
	return fmt.Errorf("the ports %s overlap the ephemeral ports %s (net.ipv4.ip_local_port_range), which the kernel hands to "+
		"any socket; choose others with --ports, or keep them from it: sysctl -w net.ipv4.ip_local_reserved_ports=%s",
		ports, local, both)
}

// reserved tells whether a list as of ip_local_reserved_ports ("8080,9148-9150") has the whole range.
func reserved(list string, want spread.Ports) bool {
	at := int(want.First)
	for item := range strings.SplitSeq(strings.TrimSpace(list), ",") { // in ascending order
		first, last, ok := strings.Cut(item, "-")
		if !ok {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if errA == nil && errB == nil && a <= at && at <= b {
			at = b + 1
		}
	}
	return at > int(want.Last)
}
