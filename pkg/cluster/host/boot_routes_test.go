// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// TestBootRoutesAreThoseOfAgent applies the files with ip(8), as the unit does, and expects the agent to find nothing to change.
func TestBootRoutesAreThoseOfAgent(t *testing.T) {
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	r := &Routing{
		Routes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("fd00:244::/32")},
		Exempt: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")},
	}
	if err := r.SaveBootRoutes(dir); err != nil {
		t.Fatal(err)
	}
	inNamespace(t, func() error {
		for family, flag := range map[hostnet.Family]string{hostnet.IPv4: "-4", hostnet.IPv6: "-6"} {
			for _, again := range []bool{false, true} {
				out, err := exec.Command(ip, flag, "-force", "-batch", filepath.Join(dir, bootRoutesFile(family))).CombinedOutput()
				if err != nil && !again {
					t.Errorf("%s: %v\n%s", family, err, out)
				}
			}
		}
		before, err := agentRoutes(routeTable)
		if err != nil {
			return err
		}
		if n, err := (System{}).SetRoutes("none", r); err != nil || n != 0 {
			t.Errorf("the agent makes %d changes, %v", n, err)
		}
		after, err := agentRoutes(routeTable)
		if diff := cmp.Diff(keysOf(before), keysOf(after), cmpopts.SortSlices(func(a, b string) bool { return a < b })); diff != "" || len(after) != 5 {
			t.Errorf("%d routes, -by ip +by the agent\n%s", len(after), diff)
		}
		rules, rulesErr := netlink.RuleListFiltered(int(hostnet.IPv4), &netlink.Rule{Table: routeTable}, netlink.RT_FILTER_TABLE)
		if rulesErr != nil || len(rules) != 1 {
			t.Errorf("rules: %v, %v", rules, rulesErr)
		}
		return err
	})
	r.Cleartext = true
	if err := r.SaveBootRoutes(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("with cleartext: %v, %v", left, err)
	}
}

func keysOf(routes map[routeKey]routeAttributes) (keys []string) {
	for k, r := range routes {
		keys = append(keys, fmt.Sprintf("%s %d %v", k.prefix, k.kind, r))
	}
	return keys
}
