// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

const bothDefaults = "0.0.0.0/0, ::/0, 10.7.0.0/16"

// deleteRules deletes the rules of a default route that match.
func (h *testHost) deleteRules(family hostnet.Family, matches func(hostnet.Rule) bool) {
	h.t.Helper()
	rules, err := hostnet.Rules(family)
	expect.NoError(h.t, err)
	for _, r := range rules {
		if matches(r) {
			expect.NoError(h.t, hostnet.DeleteRule(r))
		}
	}
}

func (h *testHost) setDown(name string) {
	h.t.Helper()
	l, err := netlink.LinkByName(name)
	expect.NoError(h.t, err)
	expect.NoError(h.t, netlink.LinkSetDown(l))
}

func TestReloadRepairsTheKernelsConfiguration(t *testing.T) {
	isMark := func(r hostnet.Rule) bool { return r.Table == firstTable }
	for name, tamper := range map[string]func(*testHost){
		"mark rule":     func(h *testHost) { h.deleteRules(hostnet.IPv4, isMark) },
		"suppress rule": func(h *testHost) { h.deleteRules(hostnet.IPv6, suppresses) },
		"all rules": func(h *testHost) {
			for _, f := range hostnet.Families() {
				h.deleteRules(f, func(r hostnet.Rule) bool { return isMark(r) || suppresses(r) })
			}
		},
		"default route": func(h *testHost) {
			expect.NoError(h.t, hostnet.RemoveRoute(hostnet.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Link: "wg0", Table: firstTable}))
		},
		"address": func(h *testHost) {
			expect.NoError(h.t, hostnet.RemoveAddress("wg0", netip.MustParsePrefix("fd09::1/64")))
		},
		"MTU":  func(h *testHost) { expect.NoError(h.t, hostnet.SetMTU("wg0", 1290)) },
		"down": func(h *testHost) { h.setDown("wg0") },
		"down and up": func(h *testHost) {
			h.setDown("wg0")
			expect.NoError(h.t, hostnet.SetLinkUp("wg0", 1320))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			i := h.open("wg0", strings.Replace(basic, "10.7.0.0/16", bothDefaults, 1))
			h.up(i)
			want := h.snapshot()
			tamper(h)
			if missing, err := h.Missing("wg0"); err != nil || len(missing) == 0 {
				t.Errorf("doctor and check find %q, error %v, want a difference", missing, err)
			}
			h.stderr.Reset()
			expect.NoError(t, h.Reload(t.Context(), i))
			if diff := cmp.Diff(want, h.snapshot()); diff != "" {
				t.Error(diff)
			}
			if got := h.stderr.String(); strings.Contains(got, "nothing changed") {
				t.Errorf("%q is printed", got)
			}
			if missing, err := h.Missing("wg0"); err != nil || len(missing) > 0 {
				t.Errorf("afterwards doctor and check find %q, error %v, want nothing", missing, err)
			}
			expect.NoError(t, h.Down(t.Context(), i))
			if rules := strings.Join(h.rules(), "\n"); strings.Contains(rules, "SuppressDefault:true") {
				t.Errorf("Down left a rule:\n%s", rules)
			}
		})
	}
}

func TestReloadNamesWhatItCannotRepair(t *testing.T) {
	h := newHost(t)
	i := h.open("wg0", strings.Replace(basic, "10.7.0.0/16", bothDefaults, 1))
	h.up(i)
	expect.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: defaultNet(), Gw: netip.MustParseAddr("192.0.2.1").AsSlice(), Table: 7}))
	r := netlink.NewRule()
	r.Table, r.Priority = 7, 5
	expect.NoError(t, netlink.RuleAdd(r))
	const want = "packets to 0.0.0.0/0 leave by u0, on the route to 0.0.0.0/0"
	for range 2 {
		if err := h.Reload(t.Context(), i); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
	changed := h.open("wg0", strings.NewReplacer("10.7.0.0/16", bothDefaults, "[Peer]", "[Peer]\nPersistentKeepalive = 5").Replace(basic))
	if err := h.Reload(t.Context(), changed); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a changed file: got error %v, want %s", err, want)
	}
	if st, err := (&job{Runner: h.Runner, Interface: i}).status(); err != nil || st.Peers[0].Keepalive != 5 {
		t.Errorf("got %+v, error %v, want the change of the file", st.Peers, err)
	}
}

// TestDownRemovesTheRuleThatIsLeft: another program has deleted the other one of a pair.
func TestDownRemovesTheRuleThatIsLeft(t *testing.T) {
	h := newHost(t)
	before := h.rules()
	i := h.open("wg0", strings.Replace(basic, "10.7.0.0/16", bothDefaults, 1))
	h.up(i)
	h.deleteRules(hostnet.IPv4, func(r hostnet.Rule) bool { return r.Table == firstTable })
	expect.NoError(t, h.Down(t.Context(), i))
	if diff := cmp.Diff(before, h.rules()); diff != "" {
		t.Error(diff)
	}
}

// TestKilledReloadIsCleanedUp ends Reload after each step, as SIGKILL does.
func TestKilledReloadIsCleanedUp(t *testing.T) {
	for name, edit := range edits() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			empty := h.snapshot()
			i := h.open("wg0", basic)
			h.up(i)
			want, changed := h.snapshot(), strings.NewReplacer(edit...).Replace(basic)
			reset := func() []string { // src_valid_mark stays set, as after Down
				expect.NoError(t, hostnet.SetSrcValidMark(false))
				return h.snapshot()
			}
			j := &job{Runner: h.Runner, Interface: h.open("wg0", changed)}
			change, err := j.planReload(t.Context())
			expect.NoError(t, err)
			for n := 1; n < len(change.Steps); n++ {
				var done progress
				expect.NoError(t, done.execute(t.Context(), j, change.Steps[:n]))
				expect.NoError(t, h.Reload(t.Context(), h.open("wg0", basic)))
				if diff := cmp.Diff(want, reset()); diff != "" {
					t.Errorf("reload after %d steps, the last %v: %s", n, Commands(change.Steps[:n]), diff)
				}
			}
			var done progress
			expect.NoError(t, done.execute(t.Context(), j, change.Steps[:len(change.Steps)/2]))
			expect.NoError(t, h.Down(t.Context(), h.open("wg0", basic)))
			if diff := cmp.Diff(empty, reset()); diff != "" {
				t.Errorf("down: %s", diff)
			}
		})
	}
}

// TestReloadKeepsWhatPostUpChanged: reload repairs what another program removes afterwards, and nothing else.
func TestReloadKeepsWhatPostUpChanged(t *testing.T) {
	if _, err := lookPath("ip"); err != nil {
		t.Skip("needs ip(8)")
	}
	for name, hook := range map[string]string{
		"other rule":          "ip -4 rule del not fwmark 51820 table 51820; ip -4 rule add from 10.9.0.0/24 lookup 51820",
		"no rules":            "ip -4 rule del not fwmark 51820 table 51820; ip -4 rule del table main suppress_prefixlength 0",
		"no suppress rule":    "ip -4 rule del table main suppress_prefixlength 0",
		"no default route":    "ip route del default table 51820",
		"no route, other MTU": "ip route del 10.7.0.0/16 dev %i; ip link set mtu 1300 dev %i",
		"no address":          "ip addr del 10.9.0.1/24 dev %i",
		"no IPv6 address":     "ip addr del fd09::1/64 dev %i",
		"down":                "ip link set %i down",
		"nothing":             "true",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			text := strings.NewReplacer("10.7.0.0/16", bothDefaults, "MTU", "PostUp = "+hook+"\nMTU").Replace(basic)
			i := h.open("wg0", text)
			expect.NoError(t, h.Up(t.Context(), i))
			want := h.snapshot()
			keeps := func() {
				t.Helper()
				if missing, err := h.Missing("wg0"); err != nil || len(missing) > 0 {
					t.Errorf("doctor and check find %q, error %v, want nothing", missing, err)
				}
				if diff := cmp.Diff(want, h.snapshot()); diff != "" {
					t.Error(diff)
				}
			}
			h.stderr.Reset()
			expect.NoError(t, h.Reload(t.Context(), i))
			if got := h.stderr.String(); !strings.HasPrefix(got, "wg0: nothing changed\n") {
				t.Errorf("%q is printed", got)
			}
			keeps()
			expect.NoError(t, h.Reload(t.Context(), h.open("wg0", strings.Replace(text, "[Peer]", "[Peer]\nPersistentKeepalive = 5", 1))))
			keeps()
			h.deleteRules(hostnet.IPv6, func(r hostnet.Rule) bool { return r.Table == firstTable })
			expect.NoError(t, hostnet.SetMTU("wg0", 1310))
			if missing, err := h.Missing("wg0"); err != nil || len(missing) != 2 {
				t.Errorf("doctor and check find %q, error %v, want the rule and the MTU", missing, err)
			}
			expect.NoError(t, h.Reload(t.Context(), i))
			keeps()
		})
	}
}

// TestReloadAddsAgainWhatTheFileHadDropped: PostUp removed a route, and a later file does not have it.
func TestReloadAddsAgainWhatTheFileHadDropped(t *testing.T) {
	if _, err := lookPath("ip"); err != nil {
		t.Skip("needs ip(8)")
	}
	h := newHost(t)
	text := strings.Replace(basic, "MTU", "PostUp = ip route del 10.7.0.0/16 dev %i\nMTU", 1)
	h.up(h.open("wg0", text))
	h.leads("10.7.0.9", "u0")
	expect.NoError(t, h.Reload(t.Context(), h.open("wg0", strings.Replace(text, "10.7.0.0/16, ", "", 1))))
	expect.NoError(t, h.Reload(t.Context(), h.open("wg0", text)))
	h.leads("10.7.0.9", "wg0")
}

// TestKilledReloadsOfSeveralMarksAreCleanedUp ends two of them after their rules are added.
func TestKilledReloadsOfSeveralMarksAreCleanedUp(t *testing.T) {
	marked := func(mark string) string {
		return strings.NewReplacer("10.7.0.0/16", "0.0.0.0/0", "MTU", "FwMark = "+mark+"\nMTU").Replace(basic)
	}
	for name, end := range map[string]func(*testHost) error{
		"reload": func(h *testHost) error { return h.Reload(h.t.Context(), h.open("wg0", basic)) },
		"down":   func(h *testHost) error { return h.Down(h.t.Context(), h.open("wg0", basic)) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			before := h.rules()
			h.up(h.open("wg0", marked("11")))
			for _, mark := range []string{"22", "33"} {
				j := &job{Runner: h.Runner, Interface: h.open("wg0", marked(mark))}
				change, err := j.planReload(t.Context())
				expect.NoError(t, err)
				n := slices.IndexFunc(change.Steps, func(s Step) bool { _, ok := s.(addMarkRule); return ok })
				var done progress
				expect.NoError(t, done.execute(t.Context(), j, change.Steps[:n+2]))
			}
			expect.NoError(t, end(h))
			if diff := cmp.Diff(before, h.rules()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestReloadPrintsWarningOnce adds a prefix of which a part has a gateway.
func TestReloadPrintsWarningOnce(t *testing.T) {
	h := newHost(t)
	part := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 6, 5, 0), Mask: net.CIDRMask(24, 32)}, Gw: net.IPv4(192, 0, 2, 1)}
	expect.NoError(t, netlink.RouteAdd(part))
	h.up(h.open("wg0", basic))
	h.stderr.Reset()
	expect.NoError(t, h.Reload(t.Context(), h.open("wg0", strings.Replace(basic, "10.7.0.0/16", "10.7.0.0/16, 10.6.0.0/16", 1))))
	if got := h.stderr.String(); strings.Count(got, "leave by u0") != 1 || strings.Count(got, "Warning:") != 1 {
		t.Errorf("%q is printed, want one warning", got)
	}
}
