// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts/factstest"
)

// enterNamespace moves the test into a network namespace of its own with a veth called uplink.
func enterNamespace(t *testing.T) {
	t.Helper()
	factstest.EnterNamespace(t)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "far"}); err != nil {
		t.Skipf("needs veth links: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, c Change) string {
	t.Helper()
	v, err := HostSettings{}.Read(c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestApplyAndUndoChangeRealHost(t *testing.T) {
	enterNamespace(t)
	settings, path := HostSettings{}, recordPath(t)
	write(t, "/proc/sys/net/ipv4/ip_local_port_range", "32768 65535")
	write(t, "/proc/sys/net/ipv4/ip_local_reserved_ports", "8080")
	list := Change{Kind: Offload, Target: "uplink", Key: featureList}
	if err := settings.Write(list, "on"); err != nil {
		t.Fatal(err)
	}
	examine := func() Report {
		f, err := facts.Gather(t.Context(), facts.Options{
			Pre: true, Devices: []string{"uplink"}, Dir: uapi.Dir(t.TempDir()), Now: time.Now,
		})
		if err != nil {
			t.Fatal(err)
		}
		return Examine(f)
	}
	r := examine()
	var mine []Change // others may concern this machine's CPUs
	for _, c := range r.Changes() {
		if c.Target == "uplink" || c.Target == facts.ReservedPorts {
			mine = append(mine, c)
		}
	}
	if len(mine) != 2 {
		t.Fatalf("want changes of rx-gro-list and of the reserved ports, got %+v", mine)
	}
	made, err := Apply(settings, path, mine)
	if err != nil || len(made) != 2 {
		t.Fatalf("got changes %v, error %v, want length 2, no error", made, err)
	}
	r = examine()
	for _, f := range r.Findings {
		if f.Check == "spread-ports" && f.Status != OK || f.Check == "nic-gro" && strings.Contains(f.Found, "rx-gro-list on") {
			t.Errorf("not fixed: %+v", f)
		}
	}
	if got := read(t, mine[len(mine)-1]); got != "8080,61000-61999" {
		t.Errorf("got reserved ports %q, want %q", got, "8080,61000-61999")
	}
	if outcomes, err := Undo(settings, path); err != nil || len(outcomes) != 2 || outcomes[0].Note != "" || outcomes[1].Note != "" {
		t.Errorf("got outcomes %+v, error %v, want length 2, no error", outcomes, err)
	}
	if got := read(t, list); got != "on" {
		t.Errorf("rx-gro-list is %s", got)
	}
	if got := read(t, Change{Kind: Sysctl, Target: facts.ReservedPorts}); got != "8080" {
		t.Errorf("got reserved ports %q, want %q", got, "8080")
	}
}

func TestUndoRestoresEmptyPortList(t *testing.T) {
	enterNamespace(t)
	path := recordPath(t)
	c := Change{Kind: Sysctl, Target: facts.ReservedPorts, Before: "", After: "61000-61999"}
	if _, err := Apply(HostSettings{}, path, []Change{c}); err != nil {
		t.Fatal(err)
	}
	if _, err := Undo(HostSettings{}, path); err != nil {
		t.Fatal(err)
	}
	if got := read(t, c); got != "" {
		t.Errorf("got reserved ports %q, want %q", got, "")
	}
}

func TestUndoRestoresSysfsBitmaps(t *testing.T) {
	enterNamespace(t)
	path := recordPath(t)
	c := Change{Kind: Sysfs, Target: "class/net/uplink/queues/rx-0/rps_cpus", Before: "0", After: "1"}
	if _, err := Apply(HostSettings{}, path, []Change{c}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, c); got != "1" {
		t.Errorf("got bitmap %q, want %q", got, "1")
	}
	if _, err := Undo(HostSettings{}, path); err != nil {
		t.Fatal(err)
	}
	if got := read(t, c); got != "0" {
		t.Errorf("got bitmap %q, want %q", got, "0")
	}
}

func TestUndoSkipsRemovedDevice(t *testing.T) {
	enterNamespace(t)
	path := recordPath(t)
	all := []Change{
		{Kind: Sysfs, Target: "class/net/uplink/queues/rx-0/rps_cpus", Before: "0", After: "1"},
		{Kind: Offload, Target: "uplink", Key: featureList, Before: "off", After: "on"},
	}
	if _, err := Apply(HostSettings{}, path, all); err != nil {
		t.Fatal(err)
	}
	l, err := netlink.LinkByName("uplink")
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	outcomes, err := Undo(HostSettings{}, path)
	if err != nil || len(outcomes) != 2 || outcomes[0].Note == "" || outcomes[1].Note == "" {
		t.Errorf("got outcomes %+v, error %v, want length 2, no error", outcomes, err)
	}
}

func TestFlowHashOfDeviceWithoutRSSFails(t *testing.T) {
	enterNamespace(t)
	c := Change{Kind: FlowHash, Target: "uplink", Key: "udp4", Before: "sd", After: "sdfn"}
	if _, err := (HostSettings{}).Read(c); err == nil {
		t.Error("no error for a veth, which has no RSS")
	}
	err := HostSettings{}.Write(c, "sdfn")
	if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "uplink") {
		t.Error(err)
	}
	if _, err := (HostSettings{}).Read(Change{Kind: Offload, Target: "uplink", Key: "x"}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestScopeDiffersBetweenNamespaces(t *testing.T) {
	here, err := HostSettings{}.Scope()
	if err != nil || here.Boot == "" || here.Network == "" {
		t.Fatal(here, err)
	}
	enterNamespace(t)
	there, err := HostSettings{}.Scope()
	if err != nil || there.Boot != here.Boot || there.Network == here.Network {
		t.Error(there, err)
	}
}
