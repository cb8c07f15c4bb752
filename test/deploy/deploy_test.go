// SPDX-License-Identifier: Apache-2.0

// Package deploy tests the files in deploy/ that are for other programs: network managers and distributions. `make check-recipes` has those
// programs read them.
package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ini parses a file of NetworkManager or systemd into its settings, by "section/key".
func ini(t *testing.T, path string) map[string]string {
	t.Helper()
	settings, section := map[string]string{}, ""
	for line := range strings.Lines(read(t, path)) {
		line = strings.TrimSpace(line)
		key, value, isSetting := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			section = line[1 : len(line)-1]
		case isSetting && section != "":
			settings[section+"/"+key] = value
		default:
			t.Errorf("%s: %q is no setting", path, line)
		}
	}
	return settings
}

func TestNetworkManagersLeaveTunnelsAlone(t *testing.T) {
	for path, want := range map[string]map[string]string{
		"deploy/network/networkmanager.conf": {
			"device-ropewalk/match-device": "interface-name:wg*;except:type:wireguard", "device-ropewalk/managed": "0",
		},
		"deploy/network/ropewalk.network": {
			"Match/Name": "wg*", "Match/Driver": "tun", "Link/Unmanaged": "yes", "Link/RequiredForOnline": "no",
		},
		"deploy/network/networkd.conf": {"Network/ManageForeignRoutingPolicyRules": "no"},
	} {
		got := ini(t, path)
		for key, value := range want {
			if got[key] != value {
				t.Errorf("%s: got %s=%q, want %q", path, key, got[key], value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: got %v, want %v", path, got, want)
		}
	}
}

// TestPackagesHaveTheSameFiles compares the list of files of the .deb and .rpm packages with the PKGBUILD.
func TestPackagesHaveTheSameFiles(t *testing.T) {
	arch := read(t, "deploy/arch/PKGBUILD")
	sources := regexp.MustCompile(`src: "?(deploy/[^",]+)"?, dst: ([^,]+),`).FindAllStringSubmatch(read(t, "deploy/package/nfpm.yaml"), -1)
	if len(sources) < 5 {
		t.Fatalf("got %d files in nfpm.yaml: does the search still work?", len(sources))
	}
	for _, m := range sources {
		if !strings.Contains(arch, m[1]) || !strings.Contains(arch, strings.TrimSuffix(m[2], "/")) {
			t.Errorf("PKGBUILD does not install %s as %s", m[1], m[2])
		}
	}
}

func TestPKGBUILDNamesExistingFiles(t *testing.T) {
	text := read(t, "deploy/arch/PKGBUILD")
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "PKGBUILD")
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Assign:
			has[n.Name.Value] = true
		case *syntax.FuncDecl:
			has[n.Name.Value] = true
		}
		return true
	})
	for _, name := range []string{"pkgname", "pkgver", "pkgrel", "pkgdesc", "arch", "url", "license", "makedepends", "build", "package"} {
		if !has[name] {
			t.Errorf("there is no %s", name)
		}
	}
	for _, path := range regexp.MustCompile(`(?m)[ ]((?:deploy/|\./cmd/|LICENSE)[\w./*@-]*)`).FindAllStringSubmatch(text, -1) {
		if found, err := filepath.Glob(filepath.Join(root, path[1])); err != nil || len(found) == 0 {
			t.Errorf("%s does not exist", path[1])
		}
	}
}

// TestNixOSServiceHasSettingsOfUnit compares the module's service with the unit of the packages.
func TestNixOSServiceHasSettingsOfUnit(t *testing.T) {
	nix, unit := read(t, "deploy/nixos/ropewalk.nix"), ini(t, "deploy/systemd/ropewalk@.service")
	compared := 0
	for setting, want := range unit {
		key, inService := strings.CutPrefix(setting, "Service/")
		if !inService || slices.Contains([]string{"Environment", "EnvironmentFile"}, key) { // the module has arguments as an option
			continue
		}
		compared++
		m := regexp.MustCompile(`\b` + key + ` = (.*);\n`).FindStringSubmatch(nix)
		if m == nil {
			t.Errorf("there is no %s", key)
			continue
		}
		got := strings.NewReplacer(`[ `, "", ` ]`, "", `" "`, " ", `"`, "", "${name}", "%i").Replace(m[1])
		if got != want && !strings.HasPrefix(key, "Exec") {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
	if compared < 40 {
		t.Errorf("got %d settings: does the search still work?", compared)
	}
}

// TestNixOSServiceFindsPrograms: a unit of NixOS finds only the programs of its path. Hooks of files use ip.
func TestNixOSServiceFindsPrograms(t *testing.T) {
	m := regexp.MustCompile(`\n *path = \[ (.*) \];\n`).FindStringSubmatch(read(t, "deploy/nixos/ropewalk.nix"))
	if m == nil {
		t.Fatal("the unit has no path")
	}
	packages := strings.Fields(m[1])
	for program, of := range map[string]string{"nft": "nftables", "resolvconf": "openresolv", "getent": "getent", "ip": "iproute2"} {
		if !slices.Contains(packages, "pkgs."+of) {
			t.Errorf("the path has no %s: want pkgs.%s in %v", program, of, packages)
		}
	}
}

// TestUnitBoundsMemory: a daemon that outgrows the limit is killed, whatever its score is, unless it is exempt.
func TestUnitBoundsMemory(t *testing.T) {
	unit := ini(t, "deploy/systemd/ropewalk@.service")
	if limit := unit["Service/MemoryMax"]; limit == "" || limit == "infinity" {
		t.Errorf("got MemoryMax=%q, want a limit", limit)
	}
	if score := unit["Service/OOMScoreAdjust"]; score == "-1000" {
		t.Errorf("got OOMScoreAdjust=%s, which exempts the daemon from the limit", score)
	}
	if restart := unit["Service/Restart"]; restart != "on-failure" && restart != "always" {
		t.Errorf("got Restart=%q, so that a killed daemon is not started again", restart)
	}
}

// TestEngineUnitStartsAgainWithoutLimit: after five failures within ten seconds, systemd's default would leave the node without a tunnel.
func TestEngineUnitStartsAgainWithoutLimit(t *testing.T) {
	unit := ini(t, "deploy/systemd/ropewalk-engine@.service")
	if limit, restart := unit["Unit/StartLimitIntervalSec"], unit["Service/Restart"]; limit != "0" || restart != "always" {
		t.Errorf("got StartLimitIntervalSec=%q and Restart=%q, want 0 and always", limit, restart)
	}
}

// TestNetworkdKeepsRulesOnRequest: the setting is for the whole host.
func TestNetworkdKeepsRulesOnRequest(t *testing.T) {
	for _, path := range []string{"deploy/package/nfpm.yaml", "deploy/arch/PKGBUILD"} {
		if text := read(t, path); strings.Contains(text, "networkd.conf.d") || !strings.Contains(text, "/usr/share/doc/ropewalk/networkd.conf") {
			t.Errorf("%s does not install networkd.conf as an example", path)
		}
	}
}

// TestAnsibleRoleNotifiesHandlers: a change of a file has an effect only through its handler.
func TestAnsibleRoleNotifiesHandlers(t *testing.T) {
	tasks := strings.Split(read(t, "deploy/ansible/roles/ropewalk/tasks/main.yml"), "\n- name: ")
	handlers := read(t, "deploy/ansible/roles/ropewalk/handlers/main.yml")
	for prefix, handler := range map[string]string{
		"Write the files of tunnels": "Reload tunnels", "Write the arguments of tunnels": "Restart tunnels with other arguments",
	} {
		if !slices.ContainsFunc(tasks, func(s string) bool {
			return strings.HasPrefix(s, prefix) && strings.Contains(s, "\n  notify: "+handler+"\n")
		}) {
			t.Errorf("%q does not notify %q", prefix, handler)
		}
		if !strings.Contains(handlers, "\n- name: "+handler+"\n") {
			t.Errorf("there is no handler %q", handler)
		}
	}
}
