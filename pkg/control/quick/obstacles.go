// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Prediction holds the facts known in advance about bringing an interface up, or about the Reload
// of an interface that is up.
type Prediction struct {
	Failures []string // reasons for which Up or Reload fails although the file has no mistake
	Warnings []string // of packets that take another path, and of parts that the kernel lacks of an interface that is up
	Running  bool     // the interface is up
}

// Predict predicts Up, or Reload if a Runner with this runDir has brought the interface up, on the host with the file system root.
func Predict(root fs.FS, runDir string, i Interface) (p Prediction, err error) {
	planned := plannedRoutes(root, i)
	if _, err := hostnet.FindLink(i.Name); err == nil {
		p.Running = true
		j := &job{Runner: &Runner{RunDir: runDir}, Interface: i}
		st, known := j.loadState()
		if !known || st.Settings == nil || j.interfaceReplaced(st) {
			return p, nil
		}
		found, err := j.compare(true)
		p.Warnings = append(found.errors, found.warnings...)
		if err != nil {
			return p, err
		}
		planned.Routes = routesWithout(planned.Routes, st.Settings.Routes)
		planned.Policy = without(planned.Policy, st.Settings.Policy)
	}
	conf := &i.File.Interface
	prefixes := slices.Clone(conf.Address)
	for _, r := range planned.Routes {
		prefixes = append(prefixes, r.Dst)
	}
	if n := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() }); n >= 0 && !p.Running {
		if err := hostnet.IPv6OfNewLinks(); err != nil {
			p.Failures = append(p.Failures, fmt.Sprintf("%s: %v", prefixes[n], err))
		}
	}
	for _, family := range planned.Policy {
		lowest, err := hostnet.LowestPriority(family)
		if err != nil {
			return p, err
		}
		if lowest < rulePriorities {
			p.Failures = append(p.Failures, fmt.Sprintf("no priority is left for %s rules below priority %d", family, lowest))
		}
	}
	err = p.predictPaths(conf, &planned, i.Name)
	for _, r := range planned.Routes { // addRoute fails beside the kernel's route for an address, and addRoutes does not
		if r.Name != "" && r.table() == hostnet.MainTable && r.Dst.Addr().Is4() && slices.ContainsFunc(conf.Address, func(a netip.Prefix) bool { return a.Masked() == r.Dst && !a.IsSingleIP() }) {
			p.Failures = append(p.Failures, fmt.Sprintf("table %s has a route to %s for the Address", r.Name, r.Dst))
		}
	}
	p.Failures, p.Warnings = without(p.Failures, nil), without(p.Warnings, nil)
	return p, err
}

// predictPaths looks up the paths of packets for the tunnel before it has its routes.
func (p *Prediction) predictPaths(conf *conffile.Interface, planned *settings, name string) error {
	paths, err := hostnet.OtherPaths(probed(planned), name)
	for i := range paths {
		switch o := &paths[i]; {
		case !o.Dst.IsValid(): // the tunnel makes it reachable
		case isAuto(conf.Table) && slices.Contains(planned.Policy, hostnet.FamilyOf(o.Prefix.Addr())) && o.Table != hostnet.MainTable:
			// the tunnel's rules will precede the other table's rules
		case fails(o, conf):
			p.Failures = append(p.Failures, o.String())
		case o.Diverts():
			p.Warnings = append(p.Warnings, o.String())
		}
	}
	return err
}

// fails reports whether Up fails because of a path that exists before.
func fails(o *hostnet.OtherPath, conf *conffile.Interface) bool {
	route, own := usedFor(o.Prefix, conf)
	switch {
	case own && o.Dst == route && o.Metric == hostnet.MetricOf(o.Prefix): // the kernel has one route with a prefix and a metric
		return true
	case o.Link.Tunnel:
		return false
	case o.Part != o.Prefix:
		return o.Replaces()
	}
	return o.Metric <= hostnet.MetricOf(o.Prefix) && o.Dst == route || o.Table != hostnet.MainTable && o.Table != unix.RT_TABLE_DEFAULT
}

// usedFor returns the prefix of the main table's route to p, and whether Up adds it. With Table =
// auto it is an address's route, if an address has p, and none for a default route.
func usedFor(p netip.Prefix, conf *conffile.Interface) (route netip.Prefix, added bool) {
	if isAuto(conf.Table) && p.Bits() == 0 {
		return netip.Prefix{}, false
	}
	for _, a := range conf.Address {
		if isAuto(conf.Table) && hasRoute(a) && a.Bits() <= p.Bits() && a.Masked().Contains(p.Addr()) {
			return a.Masked(), false
		}
	}
	return p, true
}

// hasRoute reports whether the kernel makes a route for an address: it makes none to 0.0.0.0 (fib_add_ifaddr).
func hasRoute(a netip.Prefix) bool { return a.Addr().Is6() || a.Masked().Addr().As4()[0] != 0 }

// plannedRoutes returns the routes and rules that Up plans: none for an unknown table, of which the caller has another warning.
func plannedRoutes(root fs.FS, i Interface) settings {
	conf, facts := &i.File.Interface, Facts{FreeTable: firstTable}
	if !isAuto(conf.Table) {
		var err error
		if facts.Table, err = hostnet.TableNumber(root, conf.Table); err != nil {
			return settings{}
		}
	}
	dev, _ := i.File.Device(context.Background(), func(context.Context, string) (config.Endpoint, error) { return config.Endpoint{}, nil }) // only names fail
	return settingsOf(conf, planRoutes(i, dev, facts))
}

// LoopingPrefixes returns for each endpoint the AllowedIPs whose route takes messages to it into
// the tunnel itself. If they pass through other tunnels with a socket in dir, it returns the
// AllowedIPs of the last of these. It returns the zero Prefix if there is none. Policy routing
// keeps messages out of a default route, but not out of parts of one, such as 128.0.0.0/1.
func LoopingPrefixes(root fs.FS, dir uapi.Dir, i Interface, endpoints []netip.Addr) ([]netip.Prefix, error) {
	conf, longest := &i.File.Interface, make([]netip.Prefix, len(endpoints))
	mentionsRoutes := func(command string) bool {
		return strings.Contains(command, "route") || strings.Contains(command, "rule")
	}
	if conf.FwMark != nil && *conf.FwMark != 0 || slices.ContainsFunc(slices.Concat(conf.PreUp, conf.PostUp), mentionsRoutes) {
		return longest, nil // they have a way of their own
	}
	addrs := make([]netip.Addr, len(endpoints))
	for n := range endpoints {
		addrs[n] = endpoints[n].Unmap()
	}
	matches, err := hostnet.MatchRoutes(addrs)
	if err != nil {
		return longest, err
	}
	own, _ := hostnet.FindLink(i.Name) // there may be none
	routes := map[netip.Prefix]bool{}
	for _, r := range plannedRoutes(root, i).Routes {
		if r.table() == hostnet.MainTable {
			routes[r.Dst] = true
		}
	}
	follower := dir.Follow()
	for n, addr := range addrs {
		m := matches[n]
		for hops := 0; hops < maxTunnels && !m.Local && !addr.IsLinkLocalUnicast(); hops++ { // whose scope is the route
			isOwn := own.Index != 0 && m.LinkIndex == own.Index
			host := m.Dst
			if isOwn || host.Bits() == 0 {
				host = netip.Prefix{} // the tunnel's route, or replaced by it
			}
			longest[n] = longestRoute(routes, addr, host.Bits())
			next, _, _ := follower.Next(m.LinkIndex, addr)
			if longest[n].IsValid() || isOwn || !next.AddrPort.IsValid() {
				break
			}
			addr = next.AddrPort.Addr().Unmap() // to which the other tunnel sends them
			through, err := hostnet.MatchRoutes([]netip.Addr{addr})
			if err != nil {
				return longest, err
			}
			m = through[0]
		}
	}
	return longest, nil
}

// longestRoute returns the longest of the routes to an address that is longer than some bits; the zero Prefix if there is none.
func longestRoute(routes map[netip.Prefix]bool, addr netip.Addr, bits int) netip.Prefix {
	for n := addr.BitLen(); n > bits; n-- {
		if p, err := addr.Prefix(n); err == nil && routes[p] {
			return p
		}
	}
	return netip.Prefix{}
}

// maxTunnels bounds the tunnels through which messages are followed.
const maxTunnels = 8

// rulePriorities is the number of priorities that the rules of a default route need.
const rulePriorities = 2
