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
	before     []string       // errors before Reload are not its own
	ofReload   bool           // which warns of paths itself
	afterHooks bool
	endpoints  []netip.AddrPort // whose route must not lead into the tunnel
	mark       uint32           // of messages to them
}

func (s readBack) run(ctx context.Context, j *job) error {
	now, err := j.present()
	var found findings
	if err == nil {
		found, err = j.findings(&now, &s.planned, s.probe)
	}
	if s.afterHooks {
		accepted := s.planned
		if err != nil { // a hook may have removed or moved the interface
			if ns, _ := j.movedTo(); ns != 0 {
				err = fmt.Errorf("it is in network namespace %s, where nothing is compared with the file", ns)
			}
			found.errors = append(found.errors, err.Error())
		} else {
			accepted.MTU, accepted.Accepted = now.MTU, now.deviations(&s.planned)
			accepted.Accepted.Paths = found.taken
		}
		for _, e := range found.errors {
			found.warnings = append(found.warnings, "after PostUp, "+e)
		}
		found.errors, err = nil, recordSettings{accepted}.run(ctx, j)
	}
	if s.ofReload {
		found.warnings = nil
	}
	if err != nil {
		return err
	}
	found.warnings = append(found.warnings, j.loops(s.endpoints, s.mark)...)
	found.errors = without(found.errors, s.before)
	return found.report(j)
}

// loops returns warnings about endpoints whose route leads into the tunnel itself, or through other tunnels back. The daemon refuses to send there.
func (j *job) loops(endpoints []netip.AddrPort, mark uint32) (warnings []string) {
	own, err := hostnet.FindLink(j.Name)
	if err != nil {
		return nil // a hook has removed it
	}
	follower := j.Sockets.Follow()
	for _, ep := range endpoints {
		links, err := hostnet.DatagramLinks(netip.AddrPort{}, ep, 0, mark)
		if err != nil || len(links) == 0 {
			continue
		}
		others := slices.DeleteFunc(links, func(l int) bool { return l == own.Index })
		if len(others) == 0 {
			warnings = append(warnings, fmt.Sprintf("messages to the endpoint %v are routed into the tunnel itself and dropped: use 0.0.0.0/0 or ::/0 in place "+
				"of parts of it, or add a route to the endpoint", ep))
		} else if loops, _ := follower.Loops(own.Index, others[0], ep.Addr().Unmap()); loops {
			warnings = append(warnings, fmt.Sprintf("messages to the endpoint %v come back through another tunnel and are dropped: add a route to the endpoint", ep))
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
type findings struct {
	errors, warnings []string
	taken            []takenPath // of which errors tell
}

// findings compares the kernel's settings with the planned ones, and looks up the paths to
// prefixes.
func (j *job) findings(now *present, planned *settings, probe []netip.Prefix) (found findings, err error) {
	found.errors = now.differences(planned)
	err = j.findOtherPaths(probe, planned.Accepted.Paths, &found)
	return found, err
}

func (p *present) differences(planned *settings) (found []string) {
	lacks := p.deviations(planned)
	if lacks.Down {
		found = append(found, "it is down")
	}
	if p.MTU != planned.MTU {
		found = append(found, fmt.Sprintf("its MTU is %d, not %d", p.MTU, planned.MTU))
	}
	for _, a := range lacks.Addresses {
		found = append(found, fmt.Sprintf("address %s is missing", a))
	}
	for _, r := range lacks.Routes {
		found = append(found, fmt.Sprintf("route %s is missing in table %d", r.Dst, r.table()))
	}
	for _, r := range lacks.Rules {
		found = append(found, p.describe(r))
	}
	return found
}

// describe describes a rule that is missing. Their order matters: when no lower priorities are left,
// the kernel adds a rule behind others.
func (p *present) describe(r policyRule) string {
	if !r.Suppress {
		return fmt.Sprintf("the %s rule for table %d is missing", r.Family, r.Mark)
	}
	text := fmt.Sprintf("no %s rule for networks of the main table precedes that for table %d", r.Family, r.Mark)
	if _, priority, _ := p.policy(r.Family, r.Mark); priority < rulePriorities {
		text += fmt.Sprintf(": no lower priority than %d is left", priority)
	}
	return text
}

// probed returns the prefixes whose packets without a mark have to enter the tunnel: the prefixes
// of the main table, and of policy routing.
func probed(planned *settings) (prefixes []netip.Prefix) {
	for _, r := range planned.Routes {
		if r.table() == hostnet.MainTable || r.Table == planned.Mark {
			prefixes = append(prefixes, r.Dst)
		}
	}
	return prefixes
}

// findOtherPaths finds the prefixes, and parts of them, for which the kernel prefers another link, but for accepted ones.
func (j *job) findOtherPaths(prefixes []netip.Prefix, accepted []takenPath, found *findings) error {
	paths, err := hostnet.OtherPaths(prefixes, j.Name)
	for _, p := range paths {
		to := &found.warnings
		switch taken := (takenPath{p.Prefix, p.Part, p.Link.Name}); {
		case p.Replaces() && !p.Link.Tunnel && slices.Contains(accepted, taken):
			continue
		case p.Replaces() && !p.Link.Tunnel:
			to, found.taken = &found.errors, append(found.taken, taken)
		case !p.Replaces() && !p.Diverts() && !p.Unreachable:
			continue
		}
		if text := p.String(); !slices.Contains(*to, text) {
			*to = append(*to, text)
		}
	}
	return err
}

// compare compares the kernel's configuration with the settings that Up or the last Reload has made. Differences that PostUp made are none.
func (j *job) compare(paths bool) (found findings, err error) {
	st, known := j.loadState()
	if !known || st.Settings == nil || j.netNS != 0 || j.interfaceReplaced(st) {
		return found, nil
	}
	now, err := j.present()
	if err != nil {
		return found, err
	}
	var probe []netip.Prefix
	if paths {
		probe = probed(st.Settings)
	}
	return j.findings(&now, st.Settings, probe)
}

// Missing returns what the kernel lacks of an interface's addresses, routes, rules and MTU, which Reload adds again. Of an interface that
// no Runner with this RunDir has brought up it returns nil.
func (r *Runner) Missing(name string) ([]string, error) {
	found, err := (&job{Runner: r, Interface: Interface{Name: name}}).compare(false)
	return found.errors, err
}

// report returns an error for the differences that Reload could not repair, and prints warnings.
func (f *findings) report(j *job) error {
	if len(f.warnings) > 0 {
		j.warn("%s: %s", j.Name, firstOf(f.warnings))
	}
	if len(f.errors) > 0 {
		return fmt.Errorf("the kernel's configuration of %s differs from the plan: %s", j.Name, firstOf(f.errors))
	}
	return nil
}
