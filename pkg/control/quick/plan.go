// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Facts are the properties of the host that Plan depends on.
type Facts struct {
	EndpointMTUs []int  // path MTUs (bytes) of the endpoints that have a route
	DefaultMTU   int    // MTU (bytes) of the default route, 0 without one
	Table        uint32 // number of the table in the file, if it has one
	FreeTable    uint32 // first unused table from 51820 on
	SrcValidMark bool   // net.ipv4.conf.all.src_valid_mark is set already
	DNSPrefix    string // prefix of resolvconf entries: "", or such as "tun."

	Firewalls map[hostnet.Family]Firewall // the firewall tools

	// Peers are the peers that the device has before its configuration is applied.
	Peers []config.PeerStatus
}

// Values of Table that are no table.
const (
	tableAuto = "auto"
	tableOff  = "off"
)

// Plan returns the steps that bring an interface up after its PreUp hooks. dev is the file's configuration of the device. Plan is a pure
// function.
func Plan(i Interface, dev config.Device, facts Facts) []Step {
	conf := &i.File.Interface
	steps := []Step{startDaemon{i.Name, slices.Concat(daemonFlags(conf, i.Metrics), i.Arguments)}, configure{link: i.Name, path: i.Path, dev: dev}}
	for _, addr := range conf.Address {
		steps = append(steps, addAddress{i.Name, addr})
	}
	routes := planRoutes(i, dev, facts)
	steps = append(steps, linkUp{i.Name, tunnelMTU(conf, routes, facts)})
	if len(conf.DNS) > 0 {
		steps = append(steps, setDNS{entry: facts.DNSPrefix + i.Name, servers: conf.DNS, search: conf.DNSSearch})
	}
	steps = append(steps, routes...)
	planned := settingsOf(conf, steps)
	check := readBack{link: i.Name, planned: planned, probe: probed(&planned)}
	last := check
	last.endpoints, last.mark = endpointsOf(dev), cmp.Or(planned.Mark, fwMark(dev))
	if len(conf.PostUp) == 0 {
		return append(steps, recordSettings{planned}, last)
	}
	last.afterHooks = true
	steps = append(steps, recordSettings{planned}, check)
	return append(append(steps, hooks(i.Name, conf.PostUp)...), last)
}

// endpointsOf returns the endpoints of a device's peers but for link-local ones, whose scope is the route.
func endpointsOf(dev config.Device) (endpoints []netip.AddrPort) {
	for i := range dev.Peers {
		if e := dev.Peers[i].Endpoint; e != nil && e.AddrPort.IsValid() && !e.AddrPort.Addr().IsLinkLocalUnicast() {
			endpoints = append(endpoints, e.AddrPort)
		}
	}
	return endpoints
}

// daemonFlags returns the flags of `ropewalk run` for ropewalk's keys. metrics takes precedence over the file.
func daemonFlags(conf *conffile.Interface, metrics string) []string {
	var flags []string
	if conf.Lanes != 0 {
		flags = append(flags, "--lanes", strconv.Itoa(conf.Lanes))
	}
	for _, s := range config.Table() {
		if text, given := s.Text(&conf.Settings); given {
			flags = append(flags, "--"+s.Flag(), text)
		}
	}
	if metrics = cmp.Or(metrics, conf.Metrics); metrics != "" {
		flags = append(flags, "--metrics", metrics)
	}
	return flags
}

// PlanDown returns the steps that take an interface down, between its PreDown and PostDown hooks. Steps with nothing to remove succeed.
// table is the table of the default route, 0 for none. dns: Up or Reload has set DNS servers, which the file may not have any more.
func PlanDown(i Interface, table uint32, dnsPrefix string, dns bool) []Step {
	var steps []Step
	if table != 0 {
		steps = append(steps, removeRules{hostnet.IPv4, table}, removeRules{hostnet.IPv6, table})
	}
	steps = append(steps, stopDaemon{i.Name})
	if dns || len(i.File.Interface.DNS) > 0 {
		steps = append(steps, unsetDNS{dnsPrefix + i.Name})
	}
	return append(steps, removeFirewall{i.Name})
}

// overhead is the size of WireGuard's encapsulation over IPv6: 40 bytes of IP, 8 of UDP, 32 of WireGuard (paper §5.4.6).
const (
	overhead   = 80
	defaultMTU = 1500
)

// ipv6MinMTU is the minimum MTU of a link with IPv6 (RFC 8200, section 5). Below it the kernel
// removes IPv6 addresses and routes.
const ipv6MinMTU = 1280

// tunnelMTU returns the MTU that wg-quick would set, from the largest path MTU of the endpoints. If
// path MTUs differ, the user has to set MTU=. With IPv6 it is at least ipv6MinMTU, whatever the
// path: ropewalk sends IPv6 packets of that size in any case.
func tunnelMTU(conf *conffile.Interface, routes []Step, facts Facts) int {
	mtu := defaultMTU
	switch {
	case conf.MTU != 0:
		return conf.MTU
	case len(facts.EndpointMTUs) > 0:
		mtu = slices.Max(facts.EndpointMTUs)
	case facts.DefaultMTU != 0:
		mtu = facts.DefaultMTU
	}
	if mtu -= overhead; hasIPv6(conf, routes) {
		return max(mtu, ipv6MinMTU)
	}
	return mtu
}

// hasIPv6 reports whether the interface has IPv6 addresses or routes.
func hasIPv6(conf *conffile.Interface, routes []Step) bool {
	return slices.ContainsFunc(conf.Address, func(a netip.Prefix) bool { return a.Addr().Is6() }) ||
		slices.ContainsFunc(settingsOf(conf, routes).Routes, func(r tableRoute) bool { return r.Dst.Addr().Is6() })
}

// planRoutes plans routes by the file's Table: none, all in one table, or the main table with policy routing for default routes.
func planRoutes(i Interface, dev config.Device, facts Facts) []Step {
	conf := &i.File.Interface
	if conf.Table == tableOff {
		return nil
	}
	var steps []Step
	var routes []tableRoute
	policy := policyRouting{i: i, facts: facts, mark: fwMark(dev)}
	for _, dst := range allowedIPs(dev, facts.Peers) {
		switch {
		case !isAuto(conf.Table):
			steps = append(steps, addRoute{link: i.Name, dst: dst, table: facts.Table, name: conf.Table})
		case dst.Bits() == 0:
			steps = append(steps, policy.defaultRoute(dst)...)
		default:
			routes = append(routes, tableRoute{Dst: dst})
		}
	}
	if len(routes) > 0 { // longer prefixes come first
		steps = slices.Insert(steps, 0, Step(addRoutes{i.Name, routes}))
	}
	return steps
}

func isAuto(table string) bool { return table == "" || table == tableAuto }

func fwMark(dev config.Device) uint32 {
	if dev.FwMark == nil {
		return 0
	}
	return *dev.FwMark
}

// policyRouting plans default routes for all packets but the tunnel's own, which have the mark.
type policyRouting struct {
	i     Interface
	facts Facts
	mark  uint32 // 0 while there is none
}

func (p *policyRouting) defaultRoute(dst netip.Prefix) []Step {
	family := hostnet.FamilyOf(dst.Addr())
	var steps []Step
	if p.mark == 0 {
		p.mark = p.facts.FreeTable
		steps = append(steps, setFwMark{p.i.Name, p.mark})
	}
	steps = append(steps,
		recordTable{p.mark},
		addRoute{link: p.i.Name, dst: dst, table: p.mark, name: decimal(p.mark)},
		addMarkRule{family, p.mark},
		addSuppressRule{family, p.mark})
	if family == hostnet.IPv4 && !p.facts.SrcValidMark {
		steps = append(steps, setSrcValidMark{})
	}
	return append(steps, addFirewall{
		link: p.i.Name, family: family, mark: p.mark, tool: p.facts.Firewalls[family],
		addrs: addressesOf(p.i.File.Interface.Address, family),
	})
}

func addressesOf(prefixes []netip.Prefix, family hostnet.Family) []netip.Addr {
	var addrs []netip.Addr
	for _, p := range prefixes {
		if hostnet.FamilyOf(p.Addr()) == family {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

// allowedIPs returns all prefixes that peers have after dev is applied to a device with the peers
// before, in wg-quick's order of routes. The longest prefix comes first, and prefixes of one length
// are in reverse order of their text.
func allowedIPs(dev config.Device, before []config.PeerStatus) (prefixes []netip.Prefix) {
	s := syncDevice{configure: configure{dev: dev}, before: config.Status{Peers: before}}
	for _, p := range s.peersAfter() {
		prefixes = append(prefixes, p.AllowedIPs...)
	}
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(b.Bits(), a.Bits()), strings.Compare(b.String(), a.String()))
	})
	return slices.Compact(prefixes)
}

// selfOf returns a function that reports whether a peer has the device's own public key. A device ignores such a peer.
func selfOf(dev config.Device) func(*config.Peer) bool {
	if dev.PrivateKey == nil || dev.PrivateKey.IsZero() {
		return func(*config.Peer) bool { return false }
	}
	own := dev.PrivateKey.Public()
	return func(p *config.Peer) bool { return p.PublicKey == own }
}
