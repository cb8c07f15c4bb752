// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Reload is a change of a running interface to the settings of its file.
type Reload struct {
	Steps []Step
	// Notes are texts for the user: settings that need Down and Up.
	Notes []string
}

// Reload changes a running interface to the settings of its file. It changes the device, and the
// parts of the host that Up has made. When a step fails, or ctx ends, Reload undoes the steps
// before. The device changes last, as a whole or not at all. Errors: ErrNotWireGuard, and the
// errors of the steps.
func (r *Runner) Reload(ctx context.Context, i Interface) error {
	unlock, err := r.lock(i.Name)
	if err != nil {
		return err
	}
	defer unlock()
	j := &job{Runner: r, Interface: i}
	change, err := j.planReload(ctx)
	if err != nil {
		return err
	}
	for _, note := range change.Notes {
		j.warn("%s", note)
	}
	var done progress
	if err := done.execute(ctx, j, change.Steps); err != nil {
		return errors.Join(err, done.revert(context.WithoutCancel(ctx), j))
	}
	if !slices.ContainsFunc(change.Steps, changes) {
		fmt.Fprintf(j.Stderr, "%s: nothing changed\n", j.Name)
	}
	found, err := j.compare(true) // also what was there before
	return cmp.Or(err, found.report(j))
}

// changes reports whether a step of Reload changes the host or the device. A step that echoes
// itself is a change as well.
func changes(s Step) bool {
	if r, ok := s.(reversible); ok {
		s = r.Step
	}
	switch s := s.(type) {
	case recordSettings, readBack:
		return false
	case syncDevice:
		return s.String() != ""
	}
	return true
}

// Commands returns the commands that steps echo, each followed by its details, which are indented.
func Commands(steps []Step) (lines []string) {
	for _, s := range steps {
		if r, ok := s.(reversible); ok {
			s = r.Step
		}
		switch s := s.(type) {
		case sequence:
			lines = append(lines, Commands(s)...)
		case addRoutes:
			lines = append(lines, s.commands()...)
		case removeRoutes:
			lines = append(lines, s.commands()...)
		default:
			if text := echo(s); text != "" {
				lines = append(lines, text)
			}
			if d, ok := s.(syncDevice); ok {
				for _, change := range d.details() {
					lines = append(lines, "  "+change)
				}
			}
		}
	}
	return lines
}

// PlanReload returns what Reload would do, and changes nothing.
func (r *Runner) PlanReload(ctx context.Context, i Interface) (Reload, error) {
	return (&job{Runner: r, Interface: i}).planReload(ctx)
}

func (j *job) planReload(ctx context.Context) (Reload, error) {
	st, err := j.status()
	if err != nil {
		return Reload{}, err
	}
	report, err := j.report()
	if err != nil {
		return Reload{}, err
	}
	st.AddNames(report.Names)
	if report.PostQuantum != nil {
		st.AddPostQuantum(*report.PostQuantum)
	}
	dev, err := Resync(ctx, j.File, j.Resolve, st.Peers)
	if err != nil {
		return Reload{}, err
	}
	saved, known := j.loadState()
	known = known && saved.Settings != nil && !j.interfaceReplaced(saved) && j.netNS == 0
	if known {
		resetRemoved(&dev, saved.Settings.FileKeys)
	}
	device, notes := syncDevice{configure{j.Name, j.Path, dev}, st, report}, report.notes(j.Name)
	if !known && j.netNS != 0 {
		note := fmt.Sprintf("addresses, MTU, DNS and routes of %s stay as they are: it was moved to network namespace %s", j.Name, j.netNS)
		return Reload{Steps: []Step{device}, Notes: append(notes, note)}, nil
	}
	if !known {
		note := fmt.Sprintf("addresses, MTU, DNS and routes of %s stay as they are: reload changes them only if this version of `ropewalk up` brought the interface up", j.Name)
		return Reload{Steps: []Step{device}, Notes: append(notes, note)}, nil
	}
	now, err := j.present()
	if err != nil {
		return Reload{}, err
	}
	planned := dev
	if planned.FwMark == nil && st.FwMark != 0 && !saved.Settings.FileMark {
		planned.FwMark = &st.FwMark
	}
	facts, err := j.reloadFacts(planned, st)
	if err != nil {
		return Reload{}, err
	}
	if len(j.File.Interface.DNS) > 0 && j.Tools.Resolvconf == "" {
		return Reload{}, ErrNoResolvconf
	}
	d := difference{
		link: j.Name, old: *saved.Settings, wanted: settingsOf(&j.File.Interface, Plan(j.Interface, planned, facts)),
		now: now, mark: st.FwMark, facts: facts,
	}
	d.now.Addresses = asWritten(now.Addresses, slices.Concat(d.old.Addresses, d.wanted.Addresses))
	d.wanted.MTU, d.wanted.Accepted = d.plannedMTU(), d.old.Accepted.within(&d.wanted)
	steps := d.steps()
	if slices.ContainsFunc(steps, changes) {
		check, err := j.checkAfter(&d, &now)
		if err != nil {
			return Reload{}, err
		}
		check.endpoints, check.mark = endpointsOf(planned), st.FwMark
		steps = append(steps, check)
	}
	return Reload{Steps: append(steps, device), Notes: append(notes, d.notes()...)}, nil
}

// checkAfter returns the step that reads the result of a change back. There may be thousands of
// prefixes. Prefixes that stay are looked up, before and afterwards, only if the change of rules
// can concern them.
func (j *job) checkAfter(d *difference, now *present) (s readBack, err error) {
	s = readBack{link: j.Name, planned: d.wanted, probe: probed(&d.wanted), ofReload: true}
	had := probed(&d.old)
	if d.old.Mark == d.wanted.Mark && slices.Equal(d.old.Policy, d.wanted.Policy) {
		s.probe, had = without(s.probe, had), nil
	}
	before, err := j.findings(now, &d.old, had)
	s.before = before.errors
	return s, err
}

// Resync returns the changes of `ropewalk syncconf`, except that settings of [Interface] which the file does not mention are kept. One of
// them may be a private key from a credential, which is not readable any more once a service has started. Peers are as the file has them,
// but for their endpoints.
func Resync(ctx context.Context, f *conffile.File, resolve conffile.Resolver, peers []config.PeerStatus) (config.Device, error) {
	dev, err := f.Sync(ctx, resolve, peers)
	if err != nil {
		return config.Device{}, err
	}
	conf := &f.Interface
	dev.PrivateKey, dev.ListenPort, dev.FwMark = conf.PrivateKey, conf.ListenPort, conf.FwMark
	if fwMark(dev) == 0 && hasPolicyRoute(conf, dev, peers) {
		dev.FwMark = nil // also with FwMark = off, Up has chosen a mark
	}
	dev.Settings = conf.Settings
	resetPeers(&dev, peers)
	return dev, nil
}

// resetPeers turns persistent keepalives off, and makes peers follow the post-quantum policy of
// their interface again. It leaves peers alone that have the setting in any section of the file.
func resetPeers(dev *config.Device, now []config.PeerStatus) {
	keepalive, own := map[noise.PublicKey]bool{}, map[noise.PublicKey]bool{}
	for i := range now {
		p := &now[i]
		keepalive[p.PublicKey], own[p.PublicKey] = p.Keepalive != 0, p.PostQuantum.Own
	}
	for i := range dev.Peers {
		p := &dev.Peers[i]
		keepalive[p.PublicKey] = keepalive[p.PublicKey] && p.Keepalive == nil
		own[p.PublicKey] = own[p.PublicKey] && p.PostQuantum == nil
	}
	for i := range dev.Peers {
		p := &dev.Peers[i]
		if keepalive[p.PublicKey] && !p.Remove {
			p.Keepalive = new(uint16)
		}
		if own[p.PublicKey] && !p.Remove {
			p.PostQuantum = new(config.PostQuantum)
		}
	}
}

// reloadFacts reads the Facts of the host of a running interface, which may itself be the default route.
func (j *job) reloadFacts(dev config.Device, st config.Status) (Facts, error) {
	f, err := j.facts(dev)
	if j.File.Interface.MTU == 0 {
		f.EndpointMTUs, f.DefaultMTU = pathMTUs(dev, func(to netip.Addr, scope uint32) (int, error) {
			return hostnet.RouteMTU(netip.Addr{}, to, scope, fwMark(dev))
		})
	}
	f.Peers = st.Peers
	return f, err
}

// hasPolicyRoute reports whether a plan has a default route with policy routing, which needs a mark.
func hasPolicyRoute(conf *conffile.Interface, dev config.Device, peers []config.PeerStatus) bool {
	return isAuto(conf.Table) && slices.ContainsFunc(allowedIPs(dev, peers), func(p netip.Prefix) bool { return p.Bits() == 0 })
}
