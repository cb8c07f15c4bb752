// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func TestReceiveCPUsAreChosenWhereUseful(t *testing.T) {
	auto, list := config.ReceiveCPUs{Auto: true}, config.ReceiveCPUs{List: []int{1, 3}}
	all := []int{0, 1, 2, 3}
	nic := facts{
		device: "eth0", driver: "virtio_net", mtu: 1500, peers: 4, reachable: 4, known: true, caps: xsk.Capabilities{Native: true},
		hashQueues: 1, cpus: all,
	}
	with := func(change func(*facts)) facts {
		f := nic
		change(&f)
		return f
	}
	udp, xdp := choice{}, choice{xdp: true}
	veth := with(func(f *facts) { f.driver = "veth" })
	few := with(func(f *facts) { f.reachable = 1 })
	enough := with(func(f *facts) { f.hashQueues = 4 })
	noXDP := with(func(f *facts) { f.caps = xsk.Capabilities{} })
	bond := with(func(f *facts) { f.driver = bonding })
	none := facts{deviceErr: errNoPeers}
	for name, test := range map[string]struct {
		want   config.ReceiveCPUs
		facts  facts
		choice choice
		cpus   []int
		reason string // part of it
	}{
		"auto":                   {auto, nic, udp, all, ""},
		"a list":                 {list, nic, udp, []int{1, 3}, ""},
		"auto, unknown queues":   {auto, with(func(f *facts) { f.hashQueues = 0 }), udp, all, ""},
		"auto, some queues":      {auto, with(func(f *facts) { f.hashQueues = 3 }), udp, all, ""},
		"auto, enough queues":    {auto, enough, udp, nil, "already distributes by port among 4 receive queues, for 4 CPUs"},
		"a list, enough queues":  {list, enough, udp, []int{1, 3}, ""},
		"auto, one CPU":          {auto, with(func(f *facts) { f.cpus = []int{2} }), udp, nil, "only one CPU"},
		"auto, few peers":        {auto, few, udp, nil, "3 of 4 peers"},
		"a list, few peers":      {list, few, udp, []int{1, 3}, ""},
		"auto, a veth":           {auto, veth, udp, nil, "checksums"},
		"auto, a Xen guest":      {auto, with(func(f *facts) { f.driver = "vif" }), udp, nil, "checksums"},
		"a list, a veth":         {list, veth, udp, []int{1, 3}, ""},
		"auto, AF_XDP":           {auto, nic, xdp, nil, "AF_XDP sockets on eth0"},
		"a list, AF_XDP":         {list, nic, xdp, nil, "AF_XDP sockets on eth0"},
		"a list, VLANs":          {list, with(func(f *facts) { f.stripsVLAN = true }), udp, nil, "ethtool -K eth0 rxvlan off"},
		"auto, no XDP":           {auto, noXDP, udp, nil, "/sys/class/net/eth0/queues/rx-*/rps_cpus"},
		"a list, no XDP":         {list, noXDP, udp, nil, "use RPS"},
		"a list, not known":      {list, with(func(f *facts) { f.known = false }), udp, []int{1, 3}, ""},
		"a list, a bond":         {list, bond, udp, nil, "is a bond"},
		"a list, no device":      {list, none, udp, nil, errNoPeers.Error()},
		"auto, a missing device": {auto, facts{deviceErr: errors.New("no such link")}, udp, nil, "no such link"},
	} {
		got := chooseCPUs(test.want, &test.facts, test.choice)
		if !slices.Equal(got.cpus, test.cpus) || !strings.Contains(got.reason, test.reason) || (got.reason == "") != (got.cpus != nil) {
			t.Errorf("%s: got %+v, want %v and %q", name, got, test.cpus, test.reason)
		}
	}
	many := with(func(f *facts) { f.cpus = make([]int, config.MaxReceiveCPUs+1) })
	if got := chooseCPUs(auto, &many, udp); len(got.cpus) != config.MaxReceiveCPUs {
		t.Errorf("got %d CPUs, want %d", len(got.cpus), config.MaxReceiveCPUs)
	}
}

func TestNewPeerDoesNotChangeLoggedReason(t *testing.T) {
	of := func(here int) cpuSelection {
		f := facts{device: "eth0", driver: "virtio_net", peers: 9, reachable: here, known: true, caps: xsk.Capabilities{Native: true}}
		return chooseCPUs(config.ReceiveCPUs{Auto: true}, &f, choice{})
	}
	none, one, all := of(0), of(1), of(9)
	if none.logReason() != one.logReason() || none.reason == one.reason {
		t.Errorf("%+v, then %+v", none, one)
	}
	if all.logReason() == one.logReason() || all.logReason() != all.reason {
		t.Errorf("another reason: %+v", all)
	}
}

func TestReceiveCPUsReportMatchesState(t *testing.T) {
	want := config.ReceiveCPUs{Auto: true}
	spread, not := cpuSelection{cpus: []int{0, 2}}, cpuSelection{reason: "a bond"}
	for name, test := range map[string]struct {
		share    cpuSelection
		attached bool
		err      error
		cpus     string
		reason   string
	}{
		"attached":     {spread, true, nil, "0,2", ""},
		"in progress":  {spread, false, nil, "", attaching},
		"refused":      {spread, false, errors.New("a foreign program"), "", "a foreign program"},
		"not chosen":   {not, false, errors.New("no device in use"), "", "a bond"},
		"not for this": {not, true, nil, "", "a bond"}, // but for AF_XDP
	} {
		r := test.share.report(want, "eth0", test.attached, test.err)
		if config.FormatCPUs(r.CPUs) != test.cpus || r.Reason != test.reason || !r.Mode.Equal(want) || r.Device != "eth0" {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}
