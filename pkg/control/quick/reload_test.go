// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"errors"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

const basic = `[Interface]
PrivateKey = $KEY
Address = 10.9.0.1/24, fd09::1/64
MTU = 1320
[Peer]
PublicKey = $A
Endpoint = 198.51.100.1:51820
AllowedIPs = 10.9.0.2/32, 10.7.0.0/16, fd07::/48
`

// edits are changes of a file, each a list of old and new text.
func edits() map[string][]string {
	return map[string][]string{
		"nothing":                      {},
		"another address":              {"10.9.0.1/24", "10.8.0.1/24"},
		"address of the same subnet":   {"10.9.0.1/24", "10.9.0.7/24"},
		"IPv4 prefix length":           {"10.9.0.1/24", "10.9.0.1/16"},
		"IPv6 prefix length":           {"fd09::1/64", "fd09::1/48"},
		"IPv6 prefix to routes":        {"fd09::1/64", "fd09::1/128", "fd07::/48", "fd09::/64"},
		"no IPv4 address":              {"10.9.0.1/24, ", ""},
		"routes in place of addresses": {"10.9.0.1/24", "10.8.0.1/24", "10.9.0.2/32", "10.9.0.0/24"},
		"more addresses":               {"fd09::1/64", "fd09::1/64, fd09::2/64, 10.9.0.2/24, 10.6.0.1/32"},
		"address without its route":    {"10.9.0.1/24", "10.9.0.1/32"},
		"MTU":                          {"1320", "1300"},
		"no MTU":                       {"MTU = 1320\n", ""},
		"MTU without IPv6":             {"1320", "1200", ", fd09::1/64", "", ", fd07::/48", ""},
		"routes":                       {"10.7.0.0/16, fd07::/48", "10.6.0.0/16, fd06::/48"},
		"another table":                {"MTU", "Table = 4711\nMTU"},
		"the main table by its name":   {"MTU", "Table = main\nMTU"},
		"no routes":                    {"MTU", "Table = off\nMTU"},
		"DNS":                          {"MTU", "DNS = 10.9.0.53, corp.example\nMTU"},
		"another peer":                 {"$A", "$B"},
		"default route, no address":    {"10.9.0.1/24, ", "", "10.7.0.0/16", "0.0.0.0/0"},
		"no peer":                      {"[Peer]\nPublicKey = $A\nEndpoint = 198.51.100.1:51820\nAllowedIPs = 10.9.0.2/32, 10.7.0.0/16, fd07::/48\n", ""},
		"default route":                {"10.7.0.0/16", "0.0.0.0/0"},
		"default routes":               {"10.7.0.0/16", "0.0.0.0/0, ::/0"},
		"default route, mark":          {"10.7.0.0/16", "0.0.0.0/0", "MTU", "FwMark = 0x4242\nMTU"},
		"default route, another table": {"10.7.0.0/16", "0.0.0.0/0", "MTU", "Table = 4711\nMTU"},
		"default route, addresses":     {"10.7.0.0/16", "0.0.0.0/0", "10.9.0.1/24", "10.9.0.7/24"},
	}
}

// freshly returns the snapshot of a host on which Up brings the interface up from a file.
func (h *testHost) freshly(text string) []string {
	i := h.open("wg0", text)
	expect.NoError(h.t, h.Up(h.t.Context(), i))
	got := h.snapshot()
	expect.NoError(h.t, h.Down(h.t.Context(), i))
	expect.NoError(h.t, hostnet.SetSrcValidMark(false))
	return got
}

func TestReloadAndBackEqualsUp(t *testing.T) {
	for name, edit := range edits() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			changed := strings.NewReplacer(edit...).Replace(basic)
			first, second := h.freshly(basic), h.freshly(changed)
			h.up(h.open("wg0", basic))
			for _, step := range []struct {
				text string
				want []string
			}{{changed, second}, {changed, second}, {basic, first}} {
				i := h.open("wg0", step.text)
				before := h.snapshot()
				_, err := h.PlanReload(t.Context(), i)
				expect.NoError(t, err)
				if diff := cmp.Diff(before, h.snapshot()); diff != "" {
					t.Error("the plan changed the host: ", diff)
				}
				expect.NoError(t, h.Reload(t.Context(), i))
				if slices.Contains(step.want, "src_valid_mark false") {
					expect.NoError(t, hostnet.SetSrcValidMark(false)) // stays set, as after Down
				}
				if diff := cmp.Diff(step.want, h.snapshot()); diff != "" {
					t.Error(diff)
				}
			}
			if plan, err := h.PlanReload(t.Context(), h.open("wg0", basic)); err != nil || len(Commands(plan.Steps)) > 0 {
				t.Errorf("another reload: got %q, error %v, want nothing", Commands(plan.Steps), err)
			}
		})
	}
}

func TestReloadReportsThatNothingChanged(t *testing.T) {
	for name, edit := range edits() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			i := h.open("wg0", strings.NewReplacer(edit...).Replace(basic))
			h.up(h.open("wg0", basic))
			// Without MTU in the file, the tunnel keeps the same one, which fits the uplink.
			for n, unchanged := range []bool{name == "nothing" || name == "no MTU", true} {
				h.stderr.Reset()
				expect.NoError(t, h.Reload(t.Context(), i))
				got := h.stderr.String()
				if (got == "wg0: nothing changed\n") != unchanged || strings.Contains(got, "nothing") != unchanged {
					t.Errorf("reload %d: got %q, want that nothing changed: %v", n, got, unchanged)
				}
			}
		})
	}
}

func TestNamesAreNoChangeOfOtherDaemons(t *testing.T) {
	_, dev := parse(t, "wg0", strings.Replace(basic, "PublicKey", "# Name = laptop\nPublicKey", 1))
	dev.Peers[0].EndpointName = "vpn.example.org:51820"
	before := config.Status{PrivateKey: *dev.PrivateKey, Peers: []config.PeerStatus{{PublicKey: dev.Peers[0].PublicKey, Endpoint: *dev.Peers[0].Endpoint}}}
	for _, a := range dev.Peers[0].AllowedIPs {
		before.Peers[0].AllowedIPs = append(before.Peers[0].AllowedIPs, a.Prefix)
	}
	dev.ReplacePeers = false
	s := syncDevice{configure{"wg0", "wg0.conf", dev}, before, deviceReport{}}
	if s.String() != "" {
		t.Errorf("got changes %q, want none", s.details())
	}
	s.report.Settings = map[string]string{}
	if got := s.details(); len(got) != 2 {
		t.Errorf("ropewalk: got changes %q, want both names", got)
	}
}

func TestReloadNotesADaemonWithoutSettings(t *testing.T) {
	h := newHost(t)
	h.Daemon = fakeCommand(fakeOlder, h.Sockets)
	i := h.open("wg0", strings.NewReplacer("MTU", "Spread = off\nMTU", "PublicKey", "# Name = laptop\nPublicKey").Replace(basic))
	h.up(i)
	change, err := h.PlanReload(t.Context(), i)
	if err != nil || !slices.ContainsFunc(change.Notes, func(note string) bool { return strings.Contains(note, "`ropewalk upgrade wg0`") }) {
		t.Errorf("got notes %q, error %v, want how to replace the daemon", change.Notes, err)
	}
	got := strings.Join(Commands(change.Steps), "\n")
	for _, want := range []string{"Spread: off, was unknown", `name "laptop"`} { // the fake daemon keeps no names
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

func TestFailedReloadChangesNothing(t *testing.T) {
	for name, edit := range edits() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.up(h.open("wg0", basic))
			before, j := h.snapshot(), &job{Runner: h.Runner, Interface: h.open("wg0", strings.NewReplacer(edit...).Replace(basic))}
			saved, _ := j.loadState()
			change, err := j.planReload(t.Context())
			expect.NoError(t, err)
			for n := range change.Steps { // the device, last, changes as a whole
				var done progress
				if err := done.execute(t.Context(), j, append(slices.Clone(change.Steps[:n]), failing{})); !errors.Is(err, errInjected) {
					t.Fatalf("after %d steps: got error %v, want %v", n, err, errInjected)
				}
				expect.NoError(t, done.revert(t.Context(), j))
				expect.NoError(t, hostnet.SetSrcValidMark(false))
				if diff := cmp.Diff(before, h.snapshot()); diff != "" {
					t.Errorf("after %d steps, the last %v: %s", n, Commands(change.Steps[:n]), diff)
				}
				if left, _ := j.loadState(); !cmp.Equal(saved, left, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
					t.Errorf("after %d steps: got state %+v, want %+v", n, left, saved)
				}
			}
		})
	}
}

func TestReloadThatLosesIPv6IsUndone(t *testing.T) {
	h := newHost(t)
	h.up(h.open("wg0", basic))
	before, i := h.snapshot(), h.open("wg0", basic)
	i.File.Interface.MTU = 1200 // a file with IPv6 addresses cannot have it
	err := h.Reload(t.Context(), i)
	if err == nil || !strings.Contains(err.Error(), "address fd09::1/64 is missing; route fd07::/48 is missing") {
		t.Errorf("got error %v, want one that names the address and the route", err)
	}
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
}

// TestReloadNeverLetsPacketsLeaveInCleartext looks up the path to an address of each prefix after
// each step.
func TestReloadNeverLetsPacketsLeaveInCleartext(t *testing.T) {
	addrs := map[netip.Addr]bool{}
	for _, a := range []string{"10.9.0.2", "10.7.0.9", "10.6.0.9", "1.2.3.4", "fd07::9", "fd06::9", "fd09::9", "2001:db8::9"} {
		addrs[netip.MustParseAddr(a)] = true
	}
	for name, edit := range edits() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			texts := []string{basic, strings.NewReplacer(edit...).Replace(basic)}
			h.up(h.open("wg0", basic))
			for range 2 {
				slices.Reverse(texts)
				j := &job{Runner: h.Runner, Interface: h.open("wg0", texts[0])}
				change, err := j.planReload(t.Context())
				expect.NoError(t, err)
				h.executeInTunnel(j, change.Steps, addrs)
			}
		})
	}
}

// executeInTunnel executes steps. Addresses that lead into the tunnel before and after all of them
// must do so after each, except those of IPv4 while its last address is removed.
func (h *testHost) executeInTunnel(j *job, steps []Step, addrs map[netip.Addr]bool) {
	h.t.Helper()
	into := func() map[netip.Addr]bool {
		set := map[netip.Addr]bool{}
		for a := range addrs {
			to, err := hostnet.RouteTo(a, 0, 0)
			set[a] = err == nil && to.Device == "wg0"
		}
		return set
	}
	has4 := func() bool {
		now, err := hostnet.Addresses("wg0")
		expect.NoError(h.t, err)
		return len(addressesOf(now, hostnet.IPv4)) > 0
	}
	before, had4 := into(), has4()
	var after []map[netip.Addr]bool
	for _, s := range steps {
		expect.NoError(h.t, j.execute(h.t.Context(), s))
		after = append(after, into())
	}
	loses4 := had4 && !has4()
	for n, set := range after {
		for a := range addrs {
			if before[a] && after[len(after)-1][a] && !set[a] && (!loses4 || a.Is6()) {
				h.t.Errorf("after %v: packets to %s leave in cleartext", steps[n], a)
			}
		}
	}
}

func TestAddressChangeKeepsRoutesToPeers(t *testing.T) {
	for name, allowed := range map[string]string{"host": "10.9.0.2/32", "subnet of the old address": "10.9.0.0/24"} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			text := strings.Replace(basic, "10.9.0.2/32", allowed, 1)
			h.up(h.open("wg0", text))
			j := &job{Runner: h.Runner, Interface: h.open("wg0", strings.Replace(text, "10.9.0.1/24", "10.8.0.1/24", 1))}
			change, err := j.planReload(t.Context())
			expect.NoError(t, err)
			for _, s := range change.Steps {
				expect.NoError(t, j.execute(t.Context(), s))
				to, err := hostnet.RouteTo(netip.MustParseAddr("10.9.0.2"), 0, 0)
				if err != nil || to.Device != "wg0" {
					t.Errorf("after %v: got device %q, error %v, want wg0", s, to.Device, err)
				}
			}
		})
	}
}

func TestPrefixLengthChangeKeepsRouteToPeers(t *testing.T) {
	h := newHost(t)
	text := strings.Replace(basic, "fd09::1/64", "fd09::1/64, fd09::7/64", 1)
	h.up(h.open("wg0", text))
	j := &job{Runner: h.Runner, Interface: h.open("wg0", strings.NewReplacer("fd09::1/64", "fd09::1/48", "fd09::7/64", "fd09::7/48").Replace(text))}
	change, err := j.planReload(t.Context())
	expect.NoError(t, err)
	for _, s := range change.Steps {
		expect.NoError(t, j.execute(t.Context(), s))
		to, err := hostnet.RouteTo(netip.MustParseAddr("fd09::5"), 0, 0)
		if err != nil || to.Device != "wg0" {
			t.Errorf("after %v: got device %q, error %v, want wg0", s, to.Device, err)
		}
	}
}

// deviceSettings are keys of the device, with another value than the default.
const deviceSettings = "ListenPort = 51820\nFwMark = 7\nSpread = off\nSpreadPorts = 62000-62999\nSpray = 4\nUnderlay = udp\nOuterFragments = on\n"

func TestReloadResetsRemovedSettings(t *testing.T) {
	h := newHost(t)
	text := strings.NewReplacer("MTU", deviceSettings+"MTU", "AllowedIPs", "PersistentKeepalive = 25\nAllowedIPs").Replace(basic)
	i := h.open("wg0", text)
	h.up(i)
	var own config.Device // which the fake daemon does not take from its flags
	own.Settings = i.File.Interface.Settings
	expect.NoError(t, (&job{Runner: h.Runner, Interface: i}).configure(own))
	i = h.open("wg0", basic)
	change, err := h.PlanReload(t.Context(), i)
	expect.NoError(t, err)
	got := strings.Join(Commands(change.Steps), "\n")
	for _, want := range []string{
		"wg set wg0 fwmark 0", "  listen port: chosen by the kernel, was 51820", "  Spread: auto, was off (applied live)", "  SpreadPorts: 61000-61999, was 62000-62999 (applied live)",
		"  Spray: off, was 4 (applied live)",
		"  Underlay: auto, was udp (applied live)", "  OuterFragments: off, was on (applied live)", ": persistent keepalive off",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	expect.NoError(t, h.Reload(t.Context(), i))
	if change, err = h.PlanReload(t.Context(), i); err != nil || len(Commands(change.Steps)) > 0 {
		t.Errorf("another reload: got %q, error %v, want nothing", Commands(change.Steps), err)
	}
	j := &job{Runner: h.Runner, Interface: i}
	st, err := j.status()
	if err != nil || st.ListenPort != 0 || st.FwMark != 0 || st.Peers[0].Keepalive != 0 {
		t.Errorf("got %+v, error %v, want the defaults", st, err)
	}
}

func TestReloadKeepsSettingsTheFileNeverHad(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", basic)
	h.up(i)
	j, off, port, mark := &job{Runner: h.Runner, Interface: i}, config.SpreadOff, uint16(4711), uint32(7)
	expect.NoError(t, j.configure(config.Device{Settings: config.Settings{Spread: &off}, ListenPort: &port, FwMark: &mark}))
	expect.NoError(t, h.Reload(t.Context(), i))
	st, err := j.status()
	expect.NoError(t, err)
	report, err := j.report()
	if err != nil || report.Settings["Spread"] != off.String() || st.ListenPort != port || st.FwMark != mark {
		t.Errorf("got %+v, %+v, error %v, want spread off, port %d, mark %d", report.Settings, st, err, port, mark)
	}
}

func TestRemovedFwMarkLeavesDefaultRouteItsOwn(t *testing.T) {
	h := newHost(t)
	text := strings.Replace(basic, "10.7.0.0/16", "0.0.0.0/0", 1)
	withoutPriorities := func(lines []string) string {
		return regexp.MustCompile(`Priority:\d+`).ReplaceAllString(strings.Join(lines, "\n"), "")
	}
	want := withoutPriorities(h.freshly(text))
	h.up(h.open("wg0", strings.Replace(text, "MTU", "FwMark = 7\nMTU", 1)))
	i := h.open("wg0", text)
	expect.NoError(t, h.Reload(t.Context(), i))
	if diff := cmp.Diff(want, withoutPriorities(h.snapshot())); diff != "" {
		t.Error(diff)
	}
	if st, err := (&job{Runner: h.Runner, Interface: i}).status(); err != nil || st.FwMark != firstTable {
		t.Errorf("got mark %d, error %v, want %d", st.FwMark, err, firstTable)
	}
}

func TestFwMarkOffKeepsMarkOfDefaultRoute(t *testing.T) {
	h := newHost(t)
	text := strings.NewReplacer("10.7.0.0/16", "0.0.0.0/0", "MTU", "FwMark = off\nMTU").Replace(basic)
	h.up(h.open("wg0", basic))
	i := h.open("wg0", text)
	j := &job{Runner: h.Runner, Interface: i}
	for _, removeState := range []bool{false, false, true} { // the change, none, and that of an interface of wg-quick
		if removeState {
			expect.NoError(t, j.removeState())
		}
		expect.NoError(t, h.Reload(t.Context(), i))
		if st, err := j.status(); err != nil || st.FwMark != firstTable {
			t.Errorf("got mark %d, error %v, want %d", st.FwMark, err, firstTable)
		}
		if plan, err := h.PlanReload(t.Context(), i); err != nil || len(Commands(plan.Steps)) > 0 {
			t.Errorf("another reload: got %q, error %v, want nothing", Commands(plan.Steps), err)
		}
	}
	expect.NoError(t, j.configure(config.Device{FwMark: new(uint32(7))}))
	i = h.open("wg0", strings.Replace(text, "0.0.0.0/0", "10.7.0.0/16", 1))
	expect.NoError(t, h.Reload(t.Context(), i))
	if st, err := j.status(); err != nil || st.FwMark != 0 {
		t.Errorf("without default route: got mark %d, error %v, want 0", st.FwMark, err)
	}
}

func TestReloadKeepsWhatOthersAdded(t *testing.T) {
	h := newHost(t)
	h.up(h.open("wg0", basic))
	address := netip.MustParsePrefix("10.5.0.1/24")
	route := hostnet.Route{Dst: netip.MustParsePrefix("10.4.0.0/16"), Link: "wg0"}
	wanted := hostnet.Route{Dst: netip.MustParsePrefix("10.6.0.0/16"), Link: "wg0"}
	expect.NoError(t, hostnet.AddAddress("wg0", address))
	expect.NoError(t, hostnet.AddRoute(route))
	expect.NoError(t, hostnet.AddRoute(wanted)) // before it is in the file
	i := h.open("wg0", strings.NewReplacer("10.7.", "10.6.", "10.9.0.1/24", "10.9.0.3/24").Replace(basic))
	expect.NoError(t, h.Reload(t.Context(), i))
	addresses, err := hostnet.Addresses("wg0")
	expect.NoError(t, err)
	routes, _, err := hostnet.LinkRoutes("wg0")
	expect.NoError(t, err)
	if !slices.Contains(addresses, address) {
		t.Errorf("%v is not in %v", address, addresses)
	}
	for _, r := range []hostnet.Route{route, wanted} {
		if r.Table = hostnet.MainTable; !slices.Contains(routes, r) {
			t.Errorf("%v is not in %v", r, routes)
		}
	}
}

func TestReloadReportsWhatNeedsUp(t *testing.T) {
	h := newHost(t)
	h.up(h.open("wg0", basic))
	i := h.open("wg0", strings.Replace(basic, "MTU", "Lanes = 3\nMetrics = :9\nPostUp = echo >$DIR/hooks\nMTU", 1))
	for range 2 {
		h.stderr.Reset()
		expect.NoError(t, h.Reload(t.Context(), i))
		for _, want := range []string{"Warning: Lanes of wg0 changed in the file", "Warning: Metrics of wg0", "Warning: PreUp or PostUp of wg0", "wg0: nothing changed\n"} {
			if !strings.Contains(h.stderr.String(), want) {
				t.Errorf("%q is not in\n%s", want, h.stderr.String())
			}
		}
	}
	if _, err := os.Stat(h.dir + "/hooks"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the hook ran: got error %v", err)
	}
}

func TestReloadOfUnknownInterfaceChangesItsDeviceOnly(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", basic)
	h.up(i)
	j := &job{Runner: h.Runner, Interface: i}
	expect.NoError(t, j.updateState(func(st *state) { st.Settings = nil }))
	before := h.snapshot()
	expect.NoError(t, h.Reload(t.Context(), h.open("wg0", strings.NewReplacer("10.7.", "10.6.", "10.9.0.1/24", "10.9.0.3/24").Replace(basic))))
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(h.stderr.String(), "stay as they are") {
		t.Error(h.stderr.String())
	}
}

func TestPlanUpChangesNothing(t *testing.T) {
	h := newHost(t)
	before := h.snapshot()
	i := h.open("wg0", everything)
	steps, err := h.PlanUp(t.Context(), i)
	expect.NoError(t, err)
	if diff := cmp.Diff(before, h.snapshot()); diff != "" {
		t.Error(diff)
	}
	h.up(i)
	var echoed []string
	for line := range strings.Lines(h.stderr.String()) {
		echoed = append(echoed, strings.TrimSpace(strings.TrimPrefix(line, "[#] ")))
	}
	if diff := cmp.Diff(echoed, shown(steps)); diff != "" {
		t.Error(diff)
	}
}

func TestSysctlNamesInterfaceWithDot(t *testing.T) {
	if got, want := (promoteSecondaries{"wg0.5"}).String(), "sysctl -q net.ipv4.conf.wg0/5.promote_secondaries=1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
