// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts/factstest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestMasqueradeRulesAreRead(t *testing.T) {
	factstest.EnterNamespace(t)
	nft := func(script string) error {
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader("flush ruleset\n" + script)
		out, err := cmd.CombinedOutput()
		if len(out) > 0 {
			t.Logf("%s", out)
		}
		return err
	}
	if err := nft("table ip nat { chain post { type nat hook postrouting priority 100; }; }"); err != nil {
		t.Skipf("needs nft and nftables: %v", err)
	}
	const masquerade = "table ip nat { chain post { type nat hook postrouting priority 100; masquerade; }; }\n"
	raw := func(rules string) string {
		return masquerade + "table inet raw { chain out { type filter hook output priority -300; " + rules + "; }; }\n"
	}
	post := func(rules string) string {
		return "table inet n { chain p { type nat hook postrouting priority 100; " + rules + "; }; }\n"
	}
	for name, c := range map[string]struct{ script, want string }{
		"nothing":            {"", "none"},
		"masquerade":         {"table ip nat { chain post { type nat hook postrouting priority 100; ip saddr 10.0.0.0/8 masquerade; }; }", "ip nat post"},
		"to ports":           {post("meta l4proto udp masquerade to :1024-65535"), "inet n p"},
		"random":             {post("masquerade random"), "none"},
		"fully random":       {post("masquerade fully-random"), "none"},
		"SNAT":               {post("ip saddr 10.0.0.0/8 snat ip to 192.0.2.1"), "inet n p"},
		"random SNAT":        {post("snat ip to 192.0.2.1 random"), "none"},
		"TCP":                {post("ip protocol tcp masquerade; meta l4proto tcp masquerade; tcp dport 1 masquerade"), "none"},
		"another device":     {post("oifname \"docker0\" masquerade; oif lo masquerade"), "none"},
		"the device":         {post("oifname \"eth0\" masquerade"), "inet n p"},
		"devices by prefix":  {post("oifname \"eth*\" masquerade"), "inet n p"},
		"but one device":     {post("oifname != \"docker0\" masquerade"), "inet n p"},
		"other ports":        {post("udp dport 53 masquerade; udp sport { 53, 67-68 } masquerade"), "none"},
		"the peer's port":    {post("udp dport 51000-52000 masquerade"), "inet n p"},
		"a jump":             {"table ip6 nat { chain c { masquerade; }\nchain post { type nat hook postrouting priority 100; jump c; }; }", "ip6 nat c"},
		"no hook":            {"table ip nat { chain c { masquerade; }; }", "none"},
		"another output":     {raw("udp sport 1 accept"), "ip nat post"},
		"exempt":             {raw("udp sport { 51820, 61000-61999 } notrack"), "exempt ip nat post"},
		"by two rules":       {raw("udp sport 51820 notrack; udp sport 61000-65535 counter notrack"), "exempt ip nat post"},
		"all UDP":            {raw("meta l4proto udp notrack"), "exempt ip nat post"},
		"all packets":        {raw("notrack"), "exempt ip nat post"},
		"a part":             {raw("udp sport 61000-61999 notrack"), "ip nat post"},
		"DNS":                {raw("udp dport 53 notrack"), "ip nat post"},
		"TCP exempt":         {raw("tcp sport 51820 notrack"), "ip nat post"},
		"IPv6 exempt":        {raw("meta nfproto ipv6 notrack"), "ip nat post"},
		"received":           {masquerade + "table inet raw { chain out { type filter hook output priority -300; }; chain pre { type filter hook prerouting priority -300; notrack; }; }", "ip nat post"},
		"after conntrack":    {masquerade + "table inet raw { chain out { type filter hook output priority 0; notrack; }; }", "unknown"},
		"a condition":        {raw("ip daddr 192.0.2.0/24 udp sport { 51820, 61000-61999 } notrack"), "unknown"},
		"after a verdict":    {raw("ip daddr 192.0.2.2 accept; notrack"), "unknown"},
		"towards the peer":   {raw("udp dport 51820 notrack"), "unknown"},
		"exempt by a device": {raw("oifname \"eth0\" notrack"), "unknown"},
	} {
		if err := nft(c.script); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := evaluated(sourceOf(nil)); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	expect.NoError(t, nft(""))
	for file, want := range map[string]string{"ip_tables_names": "unknown", "arp_tables_names": "none"} {
		if got := evaluated(sourceOf(map[string]string{"proc/thread-self/net/" + file: "filter\nnat\n"})); got != want {
			t.Errorf("%s: got %s, want %s", file, got, want)
		}
	}
}

// evaluated evaluates the rules for a tunnel.
func evaluated(s source) string {
	tunnel := &Tunnel{Peers: []Peer{{Endpoint: config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.2:51820")}}}}
	nat, err := s.readNAT()
	if err != nil {
		return err.Error()
	}
	chain, exempt, err := nat.KeepsPortsOf(tunnel, []spread.Ports{{First: 51820, Last: 51820}, {First: 61000, Last: 61999}}, []string{"eth0"})
	switch {
	case err != nil:
		return "unknown"
	case chain == "":
		return "none"
	case exempt:
		return "exempt " + chain
	}
	return chain
}

// TestIptablesRulesAreRead has the rule of Docker, as iptables-nft adds it.
func TestIptablesRulesAreRead(t *testing.T) {
	factstest.EnterNamespace(t)
	for _, c := range []struct{ command, want string }{
		{"ip6tables-nft -t nat -A POSTROUTING -s fd00::/8 -j MASQUERADE --random-fully", "none"},
		{"iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE --random-fully", "none"},
		{"iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 -j SNAT --to-source 192.0.2.1 --random-fully", "none"},
		{"ip6tables-nft -t nat -A POSTROUTING -s fd00::/8 -j SNAT --to-source fd00::1 --random-fully", "none"},
		{"iptables-nft -t nat -A POSTROUTING -o docker0 -j MASQUERADE", "none"},
		{"iptables-nft -t nat -A POSTROUTING -p tcp -j MASQUERADE", "none"},
		{"iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 -j SNAT --to-source 192.0.2.1", "ip nat POSTROUTING"},
		{"iptables-nft -t nat -F", "none"},
		{"iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "ip nat POSTROUTING"},
		{"iptables-nft -t raw -A OUTPUT -p udp --dport 69 -j CT --helper tftp", "ip nat POSTROUTING"},
		{"iptables-nft -t raw -A OUTPUT -j CT --zone 5", "ip nat POSTROUTING"},
		{"iptables-nft -t raw -A OUTPUT -p udp --sport 61000:61999 -j CT --notrack", "ip nat POSTROUTING"},
		{"iptables-nft -t raw -A OUTPUT -p udp --sport 51820 -j CT --notrack", "exempt ip nat POSTROUTING"},
		{"ip6tables-nft -t nat -A POSTROUTING -j SNAT --to-source fd00::1", "ip6 nat POSTROUTING"},
	} {
		words := strings.Fields(c.command)
		if out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
			if strings.Contains(c.command, "CT --helper") { // needs a module
				continue
			}
			t.Skipf("needs iptables-nft: %v: %s", err, out)
		}
		if got := evaluated(sourceOf(nil)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.command, got, c.want)
		}
	}
}
