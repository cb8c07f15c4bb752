// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"errors"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func TestChoiceFollowsModeAndDevice(t *testing.T) {
	const auto, byName = config.UnderlayAuto, config.UnderlayXDP
	nic := facts{
		device: "eth0", driver: "ice", mtu: 1500, peers: 4, reachable: 4,
		known: true, caps: xsk.Capabilities{Native: true, ZeroCopy: true},
	}
	with := func(change func(*facts)) facts {
		f := nic
		change(&f)
		return f
	}
	copies := with(func(f *facts) { f.caps.ZeroCopy = false })
	for name, test := range map[string]struct {
		mode   config.UnderlayMode
		facts  facts
		xdp    bool
		how    xsk.Mode
		reason string // part of it
	}{
		"udp":                 {config.UnderlayUDP, nic, false, 0, asConfigured},
		"no device":           {byName, facts{deviceErr: errors.New("no such link")}, false, 0, "no such link"},
		"auto, no device":     {auto, facts{deviceErr: errNoPeers}, false, 0, errNoPeers.Error()},
		"no XDP":              {byName, with(func(f *facts) { f.caps = xsk.Capabilities{} }), false, 0, "eth0 (ice) does not support native XDP"},
		"a bond":              {byName, with(func(f *facts) { f.driver = "bonding" }), false, 0, "a bond"},
		"jumbo":               {byName, with(func(f *facts) { f.mtu = 9000 }), false, 0, "9000"},
		"configured":          {byName, nic, true, xsk.Auto, asConfigured},
		"configured, copies":  {byName, copies, true, xsk.Copy, asConfigured},
		"configured, unknown": {byName, with(func(f *facts) { f.known = false }), true, xsk.Auto, asConfigured},
		"configured, few":     {byName, with(func(f *facts) { f.reachable = 0 }), true, xsk.Auto, asConfigured},
		"auto":                {auto, nic, true, xsk.ZeroCopy, "has zero-copy"},
		"auto, copies":        {auto, copies, false, 0, "faster than AF_XDP with copies"},
		"auto, unknown":       {auto, with(func(f *facts) { f.known = false }), false, 0, "does not report"},
		"auto, few":           {auto, with(func(f *facts) { f.reachable = 1 }), false, 0, "3 of 4 peers"},
		"auto, half":          {auto, with(func(f *facts) { f.reachable = 2 }), true, xsk.ZeroCopy, "zero-copy"},
		"auto, less than was": {auto, with(func(f *facts) { f.reachable, f.inUse = 1, true }), true, xsk.ZeroCopy, "zero-copy"},
		"auto, too few now":   {auto, with(func(f *facts) { f.reachable, f.inUse = 0, true }), false, 0, "4 of 4 peers"},
		"auto, device, alone": {auto, with(func(f *facts) { f.reachable, f.peers = 0, 0 }), true, xsk.ZeroCopy, "zero-copy"},
	} {
		got := choose(test.mode, &test.facts)
		if got.xdp != test.xdp || got.mode != test.how || !strings.Contains(got.reason, test.reason) {
			t.Errorf("%s: got %+v, want %v, %v and %q", name, got, test.xdp, test.how, test.reason)
		}
	}
}

func TestFrameSizeFollowsMTU(t *testing.T) {
	for mtu, want := range map[int]int{
		68: 2048, 1500: 2048, 2048 - xsk.RxHeadroom - ethernetHeader: 2048, 2048 - xsk.RxHeadroom - ethernetHeader + 1: 4096,
		4096 - xsk.RxHeadroom - ethernetHeader: 4096, 4096 - xsk.RxHeadroom - ethernetHeader + 1: 0, 9000: 0, 65536: 0,
	} {
		if got := frameSize(mtu); got != want {
			t.Errorf("MTU %d: frames of %d, want %d", mtu, got, want)
		}
	}
}

func TestDeviceChangesOnlyForTwiceAsManyPeers(t *testing.T) {
	links := []hostnet.Link{{Name: "a", Index: 3}, {Name: "b", Index: 2}, {Name: "c", Index: 1}}
	for _, test := range []struct {
		a, b int
		now  string
		want string
	}{
		{1, 0, "", "a"},
		{1, 2, "", "b"},
		{2, 2, "", "b"},
		{2, 1, "b", "a"},
		{2, 1, "a", "a"},
		{3, 2, "b", "b"},
		{4, 2, "b", "a"},
		{1, 0, "b", "a"},
		{1, 2, "gone", "b"},
	} {
		if got := busiestLink(links, map[int]int{3: test.a, 2: test.b}, test.now); got.Name != test.want {
			t.Errorf("%d and %d peers, %q in use: got %s, want %s", test.a, test.b, test.now, got.Name, test.want)
		}
	}
}
