// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"errors"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func TestChoiceFollowsModeAndDevice(t *testing.T) {
	const auto, byName = config.UnderlayAuto, config.UnderlayXDP
	nic := facts{
		device:      xsk.Device{Name: "eth0", Driver: "ice", MTU: 1500, Known: true, Capabilities: xsk.Capabilities{Native: true, ZeroCopy: true}},
		measuredErr: measurement.ErrNone,
	}
	measured := func(mode string, datagrams, trains float64) func(*facts) {
		compare := func(x float64) measurement.Comparison {
			return measurement.Comparison{UDP: measurement.Cost{Gbps: 1, NsPerPacket: 1}, XDP: measurement.Cost{Gbps: x, NsPerPacket: 1}}
		}
		return func(f *facts) {
			f.measured, f.measuredErr = measurement.Result{Device: "eth0", Mode: mode, Datagrams: compare(datagrams), Trains: compare(trains)}, nil
		}
	}
	with := func(change func(*facts)) facts {
		f := nic
		change(&f)
		return f
	}
	copies := with(func(f *facts) { f.device.Capabilities.ZeroCopy = false })
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
		"no XDP":              {byName, with(func(f *facts) { f.device.Capabilities = xsk.Capabilities{} }), false, 0, "eth0 (ice) does not support native XDP"},
		"a bond":              {byName, with(func(f *facts) { f.device.Driver = "bonding" }), false, 0, "a bond"},
		"jumbo":               {byName, with(func(f *facts) { f.device.MTU = 9000 }), false, 0, "9000"},
		"configured":          {byName, nic, true, xsk.Auto, asConfigured},
		"configured, copies":  {byName, copies, true, xsk.Copy, asConfigured},
		"configured, unknown": {byName, with(func(f *facts) { f.device.Known = false }), true, xsk.Auto, asConfigured},
		"auto, not measured":  {auto, nic, false, 0, measurement.ErrNone.Error()},
		"auto, better":        {auto, with(measured(measurement.ZeroCopy, 1.2, 1.1)), true, xsk.ZeroCopy, "measured on eth0 (zerocopy)"},
		"auto, copies better": {auto, with(measured(measurement.Copy, 1.2, 1.1)), true, xsk.Copy, "measured on eth0 (copy)"},
		"auto, worse trains":  {auto, with(measured(measurement.ZeroCopy, 1.2, 0.9)), false, 0, "for trains 0.90 times the throughput"},
		"auto, no more XDP":   {auto, with(func(f *facts) { measured(measurement.Copy, 2, 2)(f); f.device.Capabilities = xsk.Capabilities{} }), false, 0, "native XDP"},
	} {
		got := choose(test.mode, &test.facts)
		if got.xdp != test.xdp || got.mode != test.how || !strings.Contains(got.reason, test.reason) {
			t.Errorf("%s: got %+v, want %v, %v and %q", name, got, test.xdp, test.how, test.reason)
		}
	}
}

func TestDeviceChangesOnlyForTwiceAsManyPeers(t *testing.T) {
	a, b, c := hostnet.Link{Name: "a", Index: 3}, hostnet.Link{Name: "b", Index: 2}, hostnet.Link{Name: "c", Index: 1}
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
		if got := busiestLink(map[hostnet.Link]int{a: test.a, b: test.b, c: 0}, test.now); got.Name != test.want {
			t.Errorf("%d and %d peers, %q in use: got %s, want %s", test.a, test.b, test.now, got.Name, test.want)
		}
	}
}
