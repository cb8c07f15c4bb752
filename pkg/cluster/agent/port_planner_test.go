// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/cluster/announce"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// fakeNIC is the result of hostnet.RSSFor.
type fakeNIC struct {
	rss   spread.RSS
	err   error
	asked []netip.Addr
}

func (f *fakeNIC) read(_, peer netip.Addr, _, _ uint32) (hostnet.RSS, error) {
	f.asked = append(f.asked, peer)
	return hostnet.RSS{RSS: f.rss}, f.err
}

// configsFor returns configurations by device, with the given peers.
func configsFor(devices map[string][]string) map[string]spreader.Config {
	configs := map[string]spreader.Config{}
	for device, peers := range devices {
		cfg := spreader.Config{Device: device, PeerPortRanges: map[netip.AddrPort]spread.Ports{}}
		for _, p := range peers {
			cfg.PeerPortRanges[netip.MustParseAddrPort(p)] = spread.DefaultPorts
		}
		configs[device] = cfg
	}
	return configs
}

func planOf(p *portPlanner, configs map[string]spreader.Config) result {
	r := result{announcement: v1alpha1.AnnouncementSpec{Endpoints: []v1alpha1.Endpoint{"192.0.2.1:51820", "[2001:db8::1]:51820"}}}
	p.plan(&r, configs, 0, spread.DefaultPorts)
	return r
}

func TestPlanIsPublishedPerIPFamily(t *testing.T) {
	key := spread.MicrosoftKey()
	nic := &fakeNIC{rss: spread.RSS{Device: "eth0", Key: key, Indirection: spread.EqualIndirection(8)}}
	p := &portPlanner{read: nic.read, log: slog.New(slog.DiscardHandler)}
	both := configsFor(map[string][]string{"eth0": {"192.0.2.3:51820", "192.0.2.2:51820", "[2001:db8::2]:51820"}})
	plans := planOf(p, both).announcement.Plans
	if len(plans) != 2 || plans[0].IPFamily != v1alpha1.IPv4 || plans[1].IPFamily != v1alpha1.IPv6 {
		t.Fatalf("got %+v, want length 2", plans)
	}
	// Another node reads the plan. No two of its ports reach the same queue.
	a := announce.Agent(&v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeSpread, Plans: plans})
	for text, to := range map[string]string{"192.0.2.77": "192.0.2.1:51820", "2001:db8::77": "[2001:db8::1]:51820"} {
		from, to, queues := netip.MustParseAddr(text), netip.MustParseAddrPort(to), map[int]bool{}
		for _, port := range a.Plans.For(to.Addr()) {
			q, err := nic.rss.Queue(netip.AddrPortFrom(from, port), to)
			if err != nil {
				t.Fatal(err)
			}
			queues[q] = true
		}
		if len(queues) != 8 {
			t.Errorf("from %s: %d of 8 queues", from, len(queues))
		}
	}
	if !slices.Contains(nic.asked, netip.MustParseAddr("192.0.2.2")) || slices.Contains(nic.asked, netip.MustParseAddr("192.0.2.3")) {
		t.Errorf("read the NIC towards %v: a changing choice would change the plan", nic.asked)
	}
}

func TestPlanFollowsNICChanges(t *testing.T) {
	nic := &fakeNIC{rss: spread.RSS{Key: spread.MicrosoftKey(), Indirection: spread.EqualIndirection(4)}}
	p := &portPlanner{read: nic.read, log: slog.New(slog.DiscardHandler)}
	configs := configsFor(map[string][]string{"eth0": {"192.0.2.2:51820"}})
	steps := []struct {
		name string
		edit func()
		want int
	}{
		{"first reconcile", func() {}, 4},
		{"nothing changes", func() {}, 4},
		{"more queues", func() { nic.rss.Indirection = spread.EqualIndirection(16) }, 16},
		{"the NIC cannot be read", func() { nic.err = hostnet.ErrNoLink }, 16},
		{"another NIC, without RSS", func() { nic.err = hostnet.ErrNoRSS }, 0},
		{"RSS again", func() { nic.err = nil }, 16},
		{"one queue", func() { nic.rss.Indirection = spread.EqualIndirection(1) }, 0},
	}
	for _, s := range steps {
		s.edit()
		before := p.cache[0].ports
		got := 0
		for _, plan := range planOf(p, configs).announcement.Plans {
			got += len(plan.Ports)
		}
		if got != s.want {
			t.Errorf("%s: got %d ports, want %d", s.name, got, s.want)
		}
		if s.name == "nothing changes" && &before[0] != &p.cache[0].ports[0] {
			t.Error("the plan was computed again")
		}
	}
}

func TestPlanFailureIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	nic := &fakeNIC{rss: spread.RSS{Device: "eth0", Key: spread.MicrosoftKey(), Indirection: make([]uint32, 100)}}
	p := &portPlanner{read: nic.read, log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, step := range []struct {
		name string
		err  error
		want string
	}{
		{"a table of another length", nil, mesh.ErrNoCommonPlan.Error()},
		{"no change", nil, ""},
		{"the NIC cannot be read", hostnet.ErrNoLink, hostnet.ErrNoLink.Error()},
		{"no change", hostnet.ErrNoLink, ""},
		{"readable again", nil, mesh.ErrNoCommonPlan.Error()},
	} {
		log.Reset()
		nic.err = step.err
		planOf(p, configsFor(map[string][]string{"eth0": {"192.0.2.2:51820"}}))
		if got := log.String(); strings.Contains(got, "computing a port plan failed") != (step.want != "") || !strings.Contains(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
	}
}

func TestNICIgnoringPortsIsNoted(t *testing.T) {
	nic := &fakeNIC{rss: spread.RSS{Device: "eth0", Key: spread.MicrosoftKey(), Indirection: spread.EqualIndirection(4), UDP4: spread.AddressesOnly}}
	r := planOf(&portPlanner{read: nic.read, log: slog.New(slog.DiscardHandler)}, configsFor(map[string][]string{"eth0": {"192.0.2.2:51820"}}))
	if len(r.announcement.Plans) > 0 || len(r.notes) != 1 || !strings.Contains(r.notes[0], "ethtool -N eth0 rx-flow-hash udp4 sdfn") {
		t.Errorf("got %+v, want no status.Plans, len(notes) 1, notes[0] with \"ethtool -N eth0 rx-flow-hash udp4 sdfn\"", r)
	}
}

func TestSeveralIngressDevicesGetNoPlan(t *testing.T) {
	nic := &fakeNIC{err: errors.New("must not be read")}
	for _, devices := range []map[string][]string{
		{}, {"eth0": {"192.0.2.2:51820"}, "eth1": {"198.51.100.2:51820"}},
	} {
		if r := planOf(&portPlanner{read: nic.read, log: slog.New(slog.DiscardHandler)}, configsFor(devices)); len(r.announcement.Plans) > 0 || len(nic.asked) > 0 {
			t.Errorf("%v: got %+v", devices, r)
		}
	}
}

func TestOneOutlierDoesNotPreventPlan(t *testing.T) {
	nic := &fakeNIC{rss: spread.RSS{Key: spread.MicrosoftKey(), Indirection: spread.EqualIndirection(4)}}
	devices := map[string][]string{"docker0": {"172.17.0.9:51820"}}
	for i := range 7 {
		devices["eth0"] = append(devices["eth0"], netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i)}), 51820).String())
	}
	if r := planOf(&portPlanner{read: nic.read, log: slog.New(slog.DiscardHandler)}, configsFor(devices)); len(r.announcement.Plans) != 1 || nic.asked[0] != netip.MustParseAddr("192.0.2.2") {
		t.Errorf("%+v, asked for the way to %v", r, nic.asked)
	}
}

func TestPeerPlansReachDeviceConfig(t *testing.T) {
	s := newSpreadReconciler(Config{Ports: spread.DefaultPorts}, func() {})
	at := netip.MustParseAddrPort("192.0.2.2:51820")
	p := mesh.SpreadPeer{Gather: spread.DefaultPorts, Spread: true, Plans: mesh.Plans{V4: []uint16{61003, 61001}, V6: []uint16{61000}}}
	cfg := withPeer(s.config("eth0"), &p, at)
	if !slices.Equal(cfg.PeerPlans[at], p.Plans.V4) || !slices.Equal(cfg.Peers, []netip.AddrPort{at}) {
		t.Errorf("got %+v, want PeerPlans[at] %v, Peers %v", cfg, p.Plans.V4, []netip.AddrPort{at})
	}
	p.Plans.V4 = []uint16{61003, 61002}
	if sameConfig(cfg, withPeer(s.config("eth0"), &p, at)) {
		t.Error("another plan leaves the configuration equal")
	}
	p.Spread = false
	if cfg := withPeer(s.config("eth0"), &p, at); len(cfg.PeerPlans) > 0 || len(cfg.Peers) > 0 || len(cfg.GatherOnly) != 1 {
		t.Errorf("peer without spreading: got %+v, want no PeerPlans, no Peers, len(GatherOnly) 1", cfg)
	}
}
