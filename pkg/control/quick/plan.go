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
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Facts are the properties of the host that Plan depends on.
type Facts struct {
	EndpointMTUs []int    // path MTUs (bytes) of the endpoints that have a route
	DefaultMTU   int      // MTU (bytes) of the default route, 0 without one
	Table        uint32   // number of the table in the file, if it has one
	FreeTable    uint32   // first unused table from 51820 on
	SrcValidMark bool     // net.ipv4.conf.all.src_valid_mark is set already
	DNSPrefix    string   // prefix of resolvconf entries: "", or such as "tun."

	Firewalls map[hostnet.Family]Firewall // the firewall tools

	// Owners are the allowed IPs that the device has before its configuration is applied, and their peers.
	Owners map[netip.Prefix]noise.PublicKey
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
	steps = append(steps, linkUp{i.Name, tunnelMTU(conf.MTU, facts)})
	if len(conf.DNS) > 0 {
		steps = append(steps, setDNS{entry: facts.DNSPrefix + i.Name, servers: conf.DNS, search: conf.DNSSearch})
	}
	steps = append(steps, planRoutes(i, dev, facts)...)
	steps = append(steps, recordSettings{settingsOf(conf, steps)})
	return append(steps, hooks(i.Name, conf.PostUp)...)
}

// daemonFlags returns the flags of `ropewalk run` for ropewalk's keys. metrics takes precedence over the file.
func daemonFlags(conf *conffile.Interface, metrics string) []string {
	var flags []string
	if conf.Lanes != 0 {
		flags = append(flags, "--lanes", strconv.Itoa(conf.Lanes))
	}
	if conf.Spread != nil {
		flags = append(flags, "--spread", conf.Spread.String())
	}
	if conf.SpreadPorts != nil {
		flags = append(flags, "--spread-ports", conf.SpreadPorts.String())
	}
	if conf.Spray != nil {
		flags = append(flags, "--spray", conf.Spray.String())
	}
	if conf.Underlay != nil {
		flags = append(flags, "--underlay", conf.Underlay.String())
	}
	if conf.OuterFragments != nil {
		flags = append(flags, "--outer-fragments", conf.OuterFragments.String())
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

// tunnelMTU returns the MTU that wg-quick would set, from the largest path MTU of the endpoints. If path MTUs differ, the user has to
// set MTU=.
func tunnelMTU(configured int, facts Facts) int {
	switch {
	case configured != 0:
		return configured
	case len(facts.EndpointMTUs) > 0:
		return slices.Max(facts.EndpointMTUs) - overhead
	case facts.DefaultMTU != 0:
		return facts.DefaultMTU - overhead
	}
	return defaultMTU - overhead
}

// planRoutes plans routes by the file's Table: none, all in one table, or the main table with policy routing for default routes.
func planRoutes(i Interface, dev config.Device, facts Facts) []Step {
	conf := &i.File.Interface
	if conf.Table == tableOff {
		return nil
	}
	var steps []Step
	policy := policyRouting{i: i, facts: facts, mark: fwMark(dev)}
	for _, dst := range allowedIPs(dev, facts.Owners) {
		switch {
		case !isAuto(conf.Table):
			steps = append(steps, addRoute{link: i.Name, dst: dst, table: facts.Table, name: conf.Table})
		case dst.Bits() == 0:
			steps = append(steps, policy.defaultRoute(dst)...)
		case !hasConnectedRoute(conf.Address, dst):
			steps = append(steps, addRoute{link: i.Name, dst: dst})
		}
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

// hasConnectedRoute reports whether a route that the kernel adds for an address covers dst. The kernel adds none for an IPv4 /32.
func hasConnectedRoute(addrs []netip.Prefix, dst netip.Prefix) bool {
	return slices.ContainsFunc(addrs, func(a netip.Prefix) bool {
		single := a.Addr().Is4() && a.IsSingleIP()
		return !single && a.Bits() <= dst.Bits() && a.Contains(dst.Addr())
	})
}

// allowedIPs returns all prefixes that peers have after dev is applied, in wg-quick's order of routes: longest prefix first, and prefixes
// of one length in reverse order of their text.
func allowedIPs(dev config.Device, before map[netip.Prefix]noise.PublicKey) []netip.Prefix {
	owners := prefixOwners{map[netip.Prefix]noise.PublicKey{}, map[noise.PublicKey][]netip.Prefix{}}
	if !dev.ReplacePeers {
		for prefix, key := range before {
			owners.add(prefix, key)
		}
	}
	isSelf := selfOf(dev)
	for i := range dev.Peers {
		if !isSelf(&dev.Peers[i]) {
			owners.apply(&dev.Peers[i])
		}
	}
	prefixes := make([]netip.Prefix, 0, len(owners.of))
	for p := range owners.of {
		prefixes = append(prefixes, p)
	}
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(b.Bits(), a.Bits()), strings.Compare(b.String(), a.String()))
	})
	return prefixes
}

// selfOf returns a function that reports whether a peer has the device's own public key. A device ignores such a peer.
func selfOf(dev config.Device) func(*config.Peer) bool {
	if dev.PrivateKey == nil || dev.PrivateKey.IsZero() {
		return func(*config.Peer) bool { return false }
	}
	own := dev.PrivateKey.Public()
	return func(p *config.Peer) bool { return p.PublicKey == own }
}

// prefixOwners are the peers of allowed IPs. As in a device, a prefix belongs to the last peer that lists it.
type prefixOwners struct {
	of     map[netip.Prefix]noise.PublicKey
	listed map[noise.PublicKey][]netip.Prefix // also those that another peer has now
}

func (o prefixOwners) add(prefix netip.Prefix, key noise.PublicKey) {
	o.of[prefix] = key
	o.listed[key] = append(o.listed[key], prefix)
}

func (o prefixOwners) remove(prefix netip.Prefix, key noise.PublicKey) {
	if o.of[prefix] == key {
		delete(o.of, prefix)
	}
}

// apply applies one peer's change.
func (o prefixOwners) apply(p *config.Peer) {
	if p.Remove || p.ReplaceAllowedIPs {
		for _, prefix := range o.listed[p.PublicKey] {
			o.remove(prefix, p.PublicKey)
		}
		delete(o.listed, p.PublicKey)
	}
	if p.Remove {
		return
	}
	for _, a := range p.AllowedIPs {
		if a.Remove {
			o.remove(a.Prefix, p.PublicKey)
		} else {
			o.add(a.Prefix, p.PublicKey)
		}
	}
}
