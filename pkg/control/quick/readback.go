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
	paths, err := hostnet.OtherPaths(prefixes, j.Name)
	for _, p := range paths {
		to := &found.errors
		if p.Link.Tunnel {
			to = &found.warnings
		}
		if text := p.String(); (p.IsWide() || p.Route.Bits() <= p.Prefix.Bits()) && !slices.Contains(*to, text) {
			*to = append(*to, text)
		}
	}
	return err
}

// warnOfWideRoutes warns of routes that have come up since Up and replace a default route into the tunnel.
func (j *job) warnOfWideRoutes() error {
	st, ok := j.loadState()
	if !ok || st.Settings == nil {
		return nil
	}
	paths, err := hostnet.WidePaths(probed(st.Settings), j.Name)
	for _, p := range paths {
		j.warn("%s: %s", j.Name, p)
	}
	return err
}
