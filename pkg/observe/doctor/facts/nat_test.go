// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts/factstest"
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
	const raw = "table inet raw { chain out { type filter hook output priority -300; udp sport 61000-61999 notrack; }; }\n"
	for name, c := range map[string]struct {
		script string
		want   NAT
	}{
		"nothing":      {"", NAT{}},
		"masquerade":   {"table ip nat { chain post { type nat hook postrouting priority 100; ip saddr 10.0.0.0/8 masquerade; }; }", NAT{KeepsPorts: "ip nat post"}},
		"to ports":     {"table inet n { chain p { type nat hook postrouting priority 100; udp dport 1 masquerade to :1024-65535; }; }", NAT{KeepsPorts: "inet n p"}},
		"random":       {"table ip nat { chain post { type nat hook postrouting priority 100; masquerade random; }; }", NAT{}},
		"fully random": {"table ip nat { chain post { type nat hook postrouting priority 100; masquerade fully-random; }; }", NAT{}},
		"a jump": {
			"table ip6 nat { chain c { masquerade; }\nchain post { type nat hook postrouting priority 100; jump c; }; }", NAT{KeepsPorts: "ip6 nat c"},
		},
		"no hook":        {"table ip nat { chain c { masquerade; }; }", NAT{}},
		"another output": {"table inet f { chain out { type filter hook output priority 0; udp sport 1 accept; }; }", NAT{}},
		"exempt": {
			raw + "table ip nat { chain post { type nat hook postrouting priority 100; masquerade; }; }", NAT{KeepsPorts: "ip nat post", Untracked: true},
		},
	} {
		if err := nft(c.script); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := readNAT(); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// TestIptablesRulesAreRead has the rule of Docker, as iptables-nft adds it.
func TestIptablesRulesAreRead(t *testing.T) {
	factstest.EnterNamespace(t)
	for _, c := range []struct {
		command string
		want    NAT
	}{
		{"ip6tables-nft -t nat -A POSTROUTING -s fd00::/8 -j MASQUERADE --random-fully", NAT{}},
		{"iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE --random-fully", NAT{}},
		{"iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE", NAT{KeepsPorts: "ip nat POSTROUTING"}},
		{"iptables-nft -t raw -A OUTPUT -p udp --sport 61000:61999 -j CT --notrack", NAT{KeepsPorts: "ip nat POSTROUTING", Untracked: true}},
	} {
		words := strings.Fields(c.command)
		if out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs iptables-nft: %v: %s", err, out)
		}
		if got, err := readNAT(); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.command, got, err, c.want)
		}
	}
}
