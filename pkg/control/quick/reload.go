// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Reload is a change of a running interface to what its file says.
type Reload struct {
	Steps []Step
	// Notes are texts for the user: settings that need Down and Up.
	Notes []string
}

// Reload changes a running interface to what its file says: its device, and of the host what Up has made. When a step fails, or ctx ends,
// Reload undoes the steps before. The device changes last, as a whole or not at all. Errors: ErrNotWireGuard, and those of the steps.
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
	return nil
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
		case syncDevice:
			for n, change := range s.details() {
				if n == 0 {
					lines = append(lines, s.String())
				}
				lines = append(lines, "  "+change)
			}
		default:
			if text := s.String(); text != "" {
				lines = append(lines, text)
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
	if err := j.addNames(&st); err != nil {
		return Reload{}, err
	}
	dev, err := Resync(ctx, j.File, j.Resolve, st.Peers)
	if err != nil {
		return Reload{}, err
	}
	device := syncDevice{configure{j.Name, j.Path, dev}, st}
	saved, known := j.loadState()
	if !known || saved.Settings == nil || j.interfaceReplaced(saved) {
		note := fmt.Sprintf("addresses, MTU, DNS and routes of %s stay as they are: only for interfaces that this version of `ropewalk up` brought up, reload knows what to change", j.Name)
		return Reload{Steps: []Step{device}, Notes: []string{note}}, nil
	}
	now, err := j.present()
	if err != nil {
		return Reload{}, err
	}
	now.Mark = st.FwMark
	planned := dev
	if planned.FwMark == nil && st.FwMark != 0 {
		planned.FwMark = &st.FwMark
	}
	facts, err := j.reloadFacts(planned, st)
	if err != nil {
		return Reload{}, err
	}
	if len(j.File.Interface.DNS) > 0 && j.Tools.Resolvconf == "" {
		return Reload{}, ErrNoResolvconf
	}
	plan := Plan(j.Interface, planned, facts)
	d := difference{link: j.Name, old: *saved.Settings, wanted: settingsOf(&j.File.Interface, plan), now: now, facts: facts}
	return Reload{Steps: append(d.steps(), device), Notes: d.notes()}, nil
}

// Resync returns the changes of `ropewalk syncconf`, except that settings which the file does not mention are kept. One of
// them may be a private key from a credential, which is not readable any more once a service has started.
func Resync(ctx context.Context, f *conffile.File, resolve conffile.Resolver, peers []config.PeerStatus) (config.Device, error) {
	dev, err := f.Sync(ctx, resolve, peers)
	if err != nil {
		return config.Device{}, err
	}
	conf := &f.Interface
	dev.PrivateKey, dev.ListenPort, dev.FwMark = conf.PrivateKey, conf.ListenPort, conf.FwMark
	conf.AddOwnSettings(&dev)
	return dev, nil
}

// present returns the addresses, routes and MTU that the interface has.
func (j *job) present() (settings, error) {
	var now settings
	link, err := hostnet.FindLink(j.Name)
	if err == nil {
		now.MTU = link.MTU
		now.Addresses, err = hostnet.Addresses(j.Name)
	}
	if err != nil {
		return now, err
	}
	routes, err := hostnet.LinkRoutes(j.Name)
	for _, r := range routes {
		if r.Table == hostnet.MainTable {
			r.Table = 0
		}
		now.Routes = append(now.Routes, tableRoute{Dst: r.Dst, Table: r.Table})
	}
	return now, err
}

// reloadFacts reads the Facts of the host of a running interface, which may itself be the default route.
func (j *job) reloadFacts(dev config.Device, st config.Status) (Facts, error) {
	f, err := j.facts(dev)
	if j.File.Interface.MTU == 0 {
		f.EndpointMTUs, f.DefaultMTU = pathMTUs(dev, func(to netip.Addr, scope uint32) (int, error) {
			return hostnet.RouteMTU(netip.Addr{}, to, scope, fwMark(dev))
		})
	}
	f.Owners = map[netip.Prefix]noise.PublicKey{}
	for i := range st.Peers {
		for _, prefix := range st.Peers[i].AllowedIPs {
			f.Owners[prefix] = st.Peers[i].PublicKey
		}
	}
	return f, err
}

// difference is a change of settings. It is pure.
type difference struct {
	link        string
	old, wanted settings // of the plan at the last Up or Reload, and of the present file
	now         settings // the interface's, which others may have changed
	facts       Facts
}

// steps returns the steps of the change. Addresses and routes that others have added stay. Routes and rules are added before others are
// removed: without either, packets for the tunnel would leave by the host's default route, in cleartext. Only the routes that go with an
// address are added after it has gone.
func (d *difference) steps() []Step {
	routes := slices.Concat(d.addresses(), d.addPolicy(), d.addRoutes(), d.removePolicy(), d.removeRoutes())
	if d.wanted.MTU < d.now.MTU { // last: below ipv6MinMTU there are no IPv6 addresses and routes to remove, or to add again
		return slices.Concat(routes, d.mtu(), d.dns(), d.record())
	}
	return slices.Concat(d.mtu(), routes, d.dns(), d.record())
}

// notes returns the settings that only a new daemon, or Up, reads.
func (d *difference) notes() (notes []string) {
	for key, changed := range map[string]bool{
		"PreUp or PostUp": d.old.Hooks != d.wanted.Hooks,
		"Lanes":           d.old.Lanes != d.wanted.Lanes,
		"Metrics":         d.old.Metrics != d.wanted.Metrics,
	} {
		if changed {
			notes = append(notes, fmt.Sprintf("%s of %s changed: this needs `ropewalk down` and `ropewalk up`", key, d.link))
		}
	}
	slices.Sort(notes)
	return notes
}

func (d *difference) mtu() []Step {
	want := d.wanted.MTU
	if want == d.now.MTU || d.wanted.FileMTU == 0 && d.old.FileMTU == 0 { // one by the routes stays as Up has found it
		return nil
	}
	var lost settings
	if want < ipv6MinMTU {
		lost = d.ipv6()
	}
	return []Step{reversible{setMTU{d.link, want}, sequence{setMTU{d.link, d.now.MTU}, restoreAddresses{d.link, lost.Addresses}, restoreRoutes{d.link, lost.Routes}}}}
}

// ipv6MinMTU is the least MTU of a link with IPv6 (RFC 8200, section 5). Below it the kernel removes IPv6 addresses and routes.
const ipv6MinMTU = 1280

// ipv6 returns the IPv6 addresses and routes that the interface has after all steps but that of the MTU.
func (d *difference) ipv6() (s settings) {
	for _, a := range without(slices.Concat(d.now.Addresses, d.wanted.Addresses), without(d.old.Addresses, d.wanted.Addresses)) {
		if a.Addr().Is6() {
			s.Addresses = append(s.Addresses, a)
		}
	}
	old, wanted := unnamed(d.old.Routes), unnamed(d.wanted.Routes)
	for _, r := range without(slices.Concat(d.now.Routes, wanted), without(old, wanted)) {
		if r.Dst.Addr().Is6() {
			add := d.step(r)
			s.Routes = append(s.Routes, tableRoute{add.dst, add.table, add.name})
		}
	}
	return s
}

// addresses adds before it removes: with the last IPv4 address of an interface, the kernel removes its IPv4 routes.
func (d *difference) addresses() []Step {
	added := without(d.wanted.Addresses, d.now.Addresses)
	removed := intersection(without(d.old.Addresses, d.wanted.Addresses), d.now.Addresses)
	var first, add, last []Step
	for _, a := range removed {
		step := reversible{removeAddress{d.link, a}, addAddress{d.link, a}}
		if a.Addr().Is6() && slices.ContainsFunc(added, func(b netip.Prefix) bool { return a.Addr() == b.Addr() }) {
			first = append(first, step) // the kernel has one length for each address
		} else {
			last = append(last, step)
		}
	}
	for _, a := range added {
		add = append(add, reversible{addAddress{d.link, a}, removeAddress{d.link, a}})
	}
	if slices.ContainsFunc(removed, func(a netip.Prefix) bool {
		return a.Addr().Is4() && slices.ContainsFunc(d.wanted.Addresses, func(b netip.Prefix) bool { return a.Masked() == b.Masked() })
	}) {
		first = append(first, promoteSecondaries{d.link})
	}
	if lost := d.lostRoutes(); len(lost) > 0 {
		first = append(first, reversible{sequence{}, restoreRoutes{d.link, lost}})
	}
	return slices.Concat(first, add, last)
}

// lostRoutes returns the routes that the kernel removes with the last IPv4 address.
func (d *difference) lostRoutes() []tableRoute {
	is4 := func(a netip.Prefix) bool { return a.Addr().Is4() }
	others := without(d.now.Addresses, d.old.Addresses)
	if !slices.ContainsFunc(d.now.Addresses, is4) || slices.ContainsFunc(slices.Concat(others, d.wanted.Addresses), is4) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(d.now.Routes), func(r tableRoute) bool { return !r.Dst.Addr().Is4() })
}

func (d *difference) removeRoutes() (steps []Step) {
	left := without(d.now.Routes, d.lostRoutes())
	for _, r := range without(unnamed(d.old.Routes), unnamed(d.wanted.Routes)) {
		if slices.Contains(left, r) {
			add := d.step(r)
			steps = append(steps, reversible{removeRoute(add), add})
		}
	}
	return steps
}

// addRoutes also adds the lost routes again that others have added.
func (d *difference) addRoutes() (steps []Step) {
	lost := d.lostRoutes()
	left, others := without(d.now.Routes, lost), without(lost, unnamed(d.old.Routes))
	for _, r := range without(slices.Concat(unnamed(d.wanted.Routes), others), left) {
		add := d.step(r)
		steps = append(steps, reversible{add, removeRoute(add)})
	}
	return steps
}

// unnamed returns the routes without the names of their tables. The main table has number 0.
func unnamed(routes []tableRoute) []tableRoute {
	routes = slices.Clone(routes)
	for i := range routes {
		routes[i].Name = ""
		if routes[i].Table == hostnet.MainTable {
			routes[i].Table = 0
		}
	}
	return routes
}

// step returns the step that adds a route, with the name of its table as a file has it.
func (d *difference) step(r tableRoute) addRoute {
	named := slices.Concat(d.wanted.Routes, d.old.Routes)
	if i := slices.Index(unnamed(named), r); i >= 0 {
		r.Name = named[i].Name
	} else if r.Table != 0 {
		r.Name = decimal(r.Table)
	}
	return addRoute{d.link, r.Dst, r.Table, r.Name}
}

// kept reports whether the rules of s for a family are those of other, too.
func kept(s settings, f hostnet.Family, other settings) bool {
	return slices.Contains(other.Policy, f) && other.Mark == s.Mark
}

// addPolicy adds the rules for default routes, and the firewall, which depends on the addresses.
func (d *difference) addPolicy() []Step {
	var steps []Step
	mark, before := d.wanted.Mark, d.now.Mark
	if mark != 0 && mark != d.old.Mark {
		steps = append(steps, reversible{recordTable{mark}, recordTable{d.old.Mark}})
	}
	if mark != 0 && mark != before {
		steps = append(steps, reversible{setFwMark{d.link, mark}, setFwMark{d.link, before}})
	}
	for _, f := range d.wanted.Policy {
		if !kept(d.wanted, f, d.old) {
			steps = append(steps, reversible{addMarkRule{f, d.wanted.Mark}, removeRules{f, d.wanted.Mark}}, addSuppressRule{f, d.wanted.Mark})
		}
	}
	if slices.Contains(d.wanted.Policy, hostnet.IPv4) && !d.facts.SrcValidMark {
		steps = append(steps, setSrcValidMark{})
	}
	if len(d.wanted.Policy) > 0 {
		steps = append(steps, d.firewall()...)
	}
	return steps
}

// removePolicy removes the rules for default routes that are not wanted any more, and with the last of them the firewall.
func (d *difference) removePolicy() []Step {
	var steps []Step
	for _, f := range d.old.Policy {
		if !kept(d.old, f, d.wanted) {
			steps = append(steps, reversible{removeRules{f, d.old.Mark}, rulesOf(f, d.old.Mark)})
		}
	}
	if d.wanted.Mark == 0 && d.old.Mark != 0 && !d.old.FileMark && !d.wanted.FileMark { // one that up has chosen
		steps = append(steps, reversible{setFwMark{d.link, 0}, setFwMark{d.link, d.now.Mark}})
	}
	if len(d.wanted.Policy) == 0 {
		steps = append(steps, d.firewall()...)
	}
	return steps
}

func rulesOf(f hostnet.Family, mark uint32) Step {
	return sequence{addMarkRule{f, mark}, addSuppressRule{f, mark}}
}

func (d *difference) firewall() []Step {
	old, wanted := d.firewallOf(d.old), d.firewallOf(d.wanted)
	if slices.EqualFunc(old, wanted, func(a, b Step) bool {
		x, y := a.(addFirewall), b.(addFirewall)
		return x.family == y.family && x.mark == y.mark && slices.Equal(x.addrs, y.addrs)
	}) {
		return nil
	}
	remove := Step(removeFirewall{d.link})
	steps := []Step{reversible{remove, append(sequence{remove}, old...)}}
	return append(steps, wanted...)
}

func (d *difference) firewallOf(s settings) (steps []Step) {
	for _, f := range s.Policy {
		steps = append(steps, addFirewall{link: d.link, family: f, mark: s.Mark, tool: d.facts.Firewall, addrs: addressesOf(s.Addresses, f)})
	}
	return steps
}

func (d *difference) dns() []Step {
	entry := d.facts.DNSPrefix + d.link
	set := func(e dnsEntry) Step {
		if len(e.Servers) == 0 {
			return sequence{unsetDNS{entry}, recordDNS{false}}
		}
		return setDNS{entry: entry, servers: e.Servers, search: e.Search}
	}
	if d.old.DNS.equal(d.wanted.DNS) {
		return nil
	}
	return []Step{reversible{sequence{}, set(d.old.DNS)}, set(d.wanted.DNS)} // a failed setDNS removes the entry
}

// recordDNS saves whether resolvconf has an entry.
type recordDNS struct{ set bool }

func (recordDNS) String() string { return "" }

func (recordDNS) undo() Step { return nil }

func (r recordDNS) run(_ context.Context, j *job) error {
	return j.updateState(func(st *state) { st.DNS = r.set })
}

// record saves the wanted settings. Those that need Up stay as they were, so that the next Reload reports them again.
func (d *difference) record() []Step {
	wanted := d.wanted
	wanted.Hooks, wanted.Lanes, wanted.Metrics = d.old.Hooks, d.old.Lanes, d.old.Metrics
	return []Step{reversible{recordSettings{wanted}, recordSettings{d.old}}}
}

// without returns the elements of a that are not in b, each once.
func without[T comparable](a, b []T) (left []T) {
	for _, v := range a {
		if !slices.Contains(b, v) && !slices.Contains(left, v) {
			left = append(left, v)
		}
	}
	return left
}

func intersection[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(v T) bool { return !slices.Contains(b, v) })
}

// syncDevice changes the device to what the file says, and keeps sessions.
type syncDevice struct {
	configure
	before config.Status
}

func (s syncDevice) String() string {
	return fmt.Sprintf("wg syncconf %s <(ropewalk strip %s)", s.link, s.path)
}

// details returns a line for each change of the device, without secrets.
func (s syncDevice) details() []string {
	lines := s.deviceDetails()
	before := map[noise.PublicKey]*config.PeerStatus{}
	for i := range s.before.Peers {
		before[s.before.Peers[i].PublicKey] = &s.before.Peers[i]
	}
	if s.dev.ReplacePeers {
		for _, p := range s.before.Peers {
			lines = append(lines, "peer "+p.PublicKey.Base64()+": removed")
		}
		before = map[noise.PublicKey]*config.PeerStatus{}
	}
	for i := range s.dev.Peers {
		p := &s.dev.Peers[i]
		for _, change := range peerDetails(before[p.PublicKey], p) {
			lines = append(lines, "peer "+p.PublicKey.Base64()+": "+change)
		}
	}
	return lines
}

func (s syncDevice) deviceDetails() (lines []string) {
	if key := s.dev.PrivateKey; key != nil && key.Clamp() != s.before.PrivateKey {
		lines = append(lines, "private key: replaced, all sessions end")
	}
	if p := s.dev.ListenPort; p != nil && *p != s.before.ListenPort {
		lines = append(lines, fmt.Sprintf("listen port: %d, was %d", *p, s.before.ListenPort))
	}
	if m := s.dev.FwMark; m != nil && *m != s.before.FwMark {
		lines = append(lines, fmt.Sprintf("fwmark: %#x, was %#x", *m, s.before.FwMark))
	}
	return lines
}

// peerDetails describes the change of a peer; before is nil for a new one.
func peerDetails(before *config.PeerStatus, p *config.Peer) (changes []string) {
	switch {
	case p.Remove:
		return []string{"removed"}
	case before == nil:
		changes, before = []string{"added"}, new(config.PeerStatus)
	}
	if p.Name != nil && *p.Name != before.Name {
		changes = append(changes, fmt.Sprintf("name %q", *p.Name))
	}
	if p.Endpoint != nil && *p.Endpoint != before.Endpoint {
		changes = append(changes, fmt.Sprintf("endpoint %v", p.Endpoint.AddrPort))
	}
	if p.Keepalive != nil && *p.Keepalive != before.Keepalive {
		changes = append(changes, fmt.Sprintf("persistent keepalive %d s", *p.Keepalive))
	}
	if p.PresharedKey != nil && *p.PresharedKey != before.PresharedKey {
		changes = append(changes, "preshared key replaced")
	}
	owners := map[netip.Prefix]noise.PublicKey{}
	for _, prefix := range before.AllowedIPs {
		owners[prefix] = p.PublicKey
	}
	applyPeer(owners, p)
	after := slices.SortedFunc(maps.Keys(owners), netip.Prefix.Compare)
	for _, prefix := range without(before.AllowedIPs, after) {
		changes = append(changes, fmt.Sprintf("allowed IP %v removed", prefix))
	}
	for _, prefix := range without(after, before.AllowedIPs) {
		changes = append(changes, fmt.Sprintf("allowed IP %v added", prefix))
	}
	return changes
}
