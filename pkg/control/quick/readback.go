// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// readBack compares the configuration that the kernel has with the planned one, before PostUp
// hooks, which may change it on purpose. A difference is an error: packets for the tunnel might
// leave in cleartext. After the hooks it only warns.
type readBack struct {
	link       string
	planned    settings
	probe      []netip.Prefix // whose packets have to enter the tunnel
	before     findings       // those of Reload before its changes are not its own
	afterHooks bool
	endpoints  []netip.AddrPort // whose route must not lead into the tunnel
	mark       uint32           // of messages to them
}

func (readBack) String() string { return "" }

func (readBack) undo() Step { return nil }

func (s readBack) run(_ context.Context, j *job) error {
	found, err := s.find(j)
	if err != nil {
		return err
	}
	if warnings := without(found.warnings, s.before.warnings); len(warnings) > 0 {
		j.warn("%s: %s", s.link, firstOf(warnings))
	}
	if errs := without(found.errors, s.before.errors); len(errs) > 0 {
		return fmt.Errorf("the kernel's configuration of %s differs from the plan: %s", s.link, firstOf(errs))
	}
	return nil
}

func (s readBack) find(j *job) (found findings, err error) {
	now, err := j.present()
	if err == nil {
		found, err = j.findings(&now, &s.planned, s.probe)
	}
	if s.afterHooks {
		if err != nil {
			found.errors = append(found.errors, err.Error())
		}
		for _, e := range found.errors {
			found.warnings = append(found.warnings, "after PostUp, "+e)
		}
		found.errors, err = nil, nil
	}
	found.warnings = append(found.warnings, loops(s.link, s.endpoints, s.mark)...)
	return found, err
}

// loops returns warnings about endpoints whose route leads into the tunnel itself. The daemon refuses to send there.
func loops(name string, endpoints []netip.AddrPort, mark uint32) (warnings []string) {
	own, err := hostnet.FindLink(name)
	if err != nil {
		return nil // a hook has removed it
	}
	for _, ep := range endpoints {
		links, err := hostnet.DatagramLinks(netip.AddrPort{}, ep, 0, mark)
		if err == nil && len(links) > 0 && !slices.ContainsFunc(links, func(l int) bool { return l != own.Index }) {
			warnings = append(warnings, fmt.Sprintf("messages to the endpoint %v are routed into the tunnel itself and dropped: use 0.0.0.0/0 or ::/0 in place "+
				"of parts of it, or add a route to the endpoint", ep))
		}
	}
	return warnings
}

// firstOf joins the first texts, and counts the others.
func firstOf(texts []string) string {
	const shown = 3
	if len(texts) > shown {
		texts = append(texts[:shown:shown], fmt.Sprintf("%d more", len(texts)-shown))
	}
	return strings.Join(texts, "; ")
}

// findings are differences between the kernel's configuration of an interface and the planned one.
// Only a path into another tunnel is a warning: the user has given both the same prefixes, and
// packets do not leave in cleartext.
type findings struct{ errors, warnings []string }

// findings compares what the kernel has with what was planned, and looks up the paths to prefixes.
func (j *job) findings(now *present, planned *settings, probe []netip.Prefix) (found findings, err error) {
	found.errors = now.differences(planned)
	rules, err := ruleDifferences(planned)
	if err != nil {
		return found, err
	}
	found.errors = append(found.errors, rules...)
	return found, j.findOtherPaths(probe, &found)
}

func (p *present) differences(planned *settings) (found []string) {
	if !p.Up {
		found = append(found, "it is down")
	}
	if p.MTU != planned.MTU {
		found = append(found, fmt.Sprintf("its MTU is %d, not %d", p.MTU, planned.MTU))
	}
	for _, a := range p.absent(planned.Addresses) {
		found = append(found, fmt.Sprintf("address %s is missing", a))
	}
	for _, r := range p.missing(planned.Routes) {
		found = append(found, fmt.Sprintf("route %s is missing in table %d", r.Dst, r.table()))
	}
	return found
}

// ruleDifferences compares the rules of policy routing. Their order matters: when no lower
// priorities are left, the kernel adds a rule behind others.
func ruleDifferences(planned *settings) (found []string, err error) {
	for _, family := range planned.Policy {
		rules, err := hostnet.Rules(family)
		if err != nil {
			return nil, err
		}
		mark := slices.IndexFunc(rules, func(r hostnet.Rule) bool { return r.Table == planned.Mark && r.NotMark == planned.Mark })
		switch {
		case mark < 0:
			found = append(found, fmt.Sprintf("the %s rule for table %d is missing", family, planned.Mark))
		case !slices.ContainsFunc(rules[:mark], suppresses):
			found = append(found, fmt.Sprintf("the %s rule for networks of the main table does not precede that for table %d: no lower priority than %d is left",
				family, planned.Mark, rules[mark].Priority))
		}
	}
	return found, nil
}

// probed returns the prefixes whose packets without a mark have to enter the tunnel: those of the
// main table, and of policy routing.
func probed(planned *settings) (prefixes []netip.Prefix) {
	for _, r := range planned.Routes {
		addr := r.Dst.Addr()
		// Every link has link-local and multicast addresses, and IPv6 packets to IPv4-mapped ones are
		// looked up as IPv4.
		special := addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.Is4In6()
		if !special && (r.table() == hostnet.MainTable || r.Table == planned.Mark) {
			prefixes = append(prefixes, r.Dst)
		}
	}
	return prefixes
}

// findOtherPaths finds the prefixes for which the kernel prefers another link. A route to a longer
// prefix is legitimate, such as to the LAN or to an endpoint, unless it replaces a default route.
func (j *job) findOtherPaths(prefixes []netip.Prefix, found *findings) error {
	paths, err := otherPaths(prefixes, j.Name)
	for _, p := range paths {
		to := &found.errors
		if isTunnel(p.link) {
			to = &found.warnings
		}
		if text := p.String(); (p.isWide() || p.route.Bits() <= p.prefix.Bits()) && !slices.Contains(*to, text) {
			*to = append(*to, text)
		}
	}
	return err
}

func isTunnel(l hostnet.Link) bool { return l.Kind == "tuntap" || l.Kind == "wireguard" }

// warnOfWideRoutes warns of routes that have come up since Up and replace a default route into the tunnel.
func (j *job) warnOfWideRoutes() error {
	st, ok := j.loadState()
	if !ok || st.Settings == nil {
		return nil
	}
	defaults := slices.DeleteFunc(probed(st.Settings), func(p netip.Prefix) bool { return p.Bits() > 0 })
	paths, err := otherPaths(defaults, j.Name)
	paths = slices.DeleteFunc(paths, func(p path) bool { return !p.isWide() })
	for i, p := range paths {
		if !slices.Contains(paths[:i], p) {
			j.warn("%s: %s", j.Name, p)
		}
	}
	return err
}

// path is where packets to an address of a prefix leave.
type path struct {
	prefix, route netip.Prefix
	link          hostnet.Link
}

func (p path) String() string {
	return fmt.Sprintf("packets to %s leave by %s, on the route to %s", p.prefix, p.link.Name, p.route)
}

// wideBits is the length from which routes beside a default route into the tunnel are legitimate, such as 10.0.0.0/8. Shorter ones replace it
// in parts: those of other VPNs, and of DHCP servers that want the traffic (option 121, CVE-2024-3661).
const wideBits = 8

// isWide reports whether a part of a default route leaves by another one.
func (p path) isWide() bool {
	return p.prefix.Bits() == 0 && p.route.Bits() > 0 && p.route.Bits() < wideBits
}

// otherPaths returns the paths of packets to prefixes that do not enter the interface with a name.
func otherPaths(prefixes []netip.Prefix, name string) (paths []path, err error) {
	if len(prefixes) == 0 {
		return nil, nil
	}
	var addrs []netip.Addr
	var of []netip.Prefix
	for _, p := range prefixes {
		for _, a := range samples(p) {
			addrs, of = append(addrs, a), append(of, p)
		}
	}
	matches, err := hostnet.MatchRoutes(addrs)
	if err != nil {
		return nil, err
	}
	links, err := linksByIndex()
	if err != nil {
		return nil, err
	}
	for i, m := range matches {
		if link := links[m.Link]; m.Dst.IsValid() && link.Name != name {
			paths = append(paths, path{of[i], m.Dst, link})
		}
	}
	return paths, nil
}

// samples returns the addresses of a prefix that are looked up: the one in the middle, as the first one of 0.0.0.0/1 is not routable. Of a
// default route they are those in the middle of parts of the unicast addresses.
func samples(p netip.Prefix) (addrs []netip.Addr) {
	parts := []string{p.String()}
	switch p {
	case netip.PrefixFrom(netip.IPv4Unspecified(), 0):
		parts = []string{"0.0.0.0/3", "32.0.0.0/3", "64.0.0.0/3", "96.0.0.0/3", "128.0.0.0/3", "160.0.0.0/3", "192.0.0.0/3"}
	case netip.PrefixFrom(netip.IPv6Unspecified(), 0):
		parts = []string{"::/0", "2000::/5", "2800::/5", "3000::/5", "3800::/5"}
	}
	for _, part := range parts {
		addrs = append(addrs, middle(netip.MustParsePrefix(part)))
	}
	return addrs
}

func linksByIndex() (map[int]hostnet.Link, error) {
	all, err := hostnet.Links()
	links := map[int]hostnet.Link{}
	for _, l := range all {
		links[l.Index] = l
	}
	return links, err
}

// middle returns the address in the middle of a prefix.
func middle(p netip.Prefix) netip.Addr {
	if p.IsSingleIP() {
		return p.Addr()
	}
	b := p.Masked().Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
