// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestInvalidPeerPlanIsRejectedBeforeAnyChange(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.2:51820")
	many := make([]uint16, spread.MaxPorts+1)
	for i := range many {
		many[i] = 61000 + uint16(i)
	}
	for _, c := range []struct {
		plan  []uint16
		edit  func(*Config)
		fault string
	}{
		{[]uint16{61007, 61000}, func(*Config) {}, ""},
		{[]uint16{}, func(*Config) {}, "0 ports in the port plan of"},
		{many, func(*Config) {}, "65 ports in the port plan of"},
		{[]uint16{60999}, func(*Config) {}, "port 60999 in the port plan of"},
		{[]uint16{61000, 61000}, func(*Config) {}, "planned port 61000 occurs twice"},
		{[]uint16{61000}, func(c *Config) { c.PortPlan = []uint16{61001} }, "a port plan for all peers excludes"},
	} {
		cfg := Config{Device: "eth0", Port: port, Peers: []netip.AddrPort{at}, PeerPlans: map[netip.AddrPort][]uint16{at: c.plan}}
		c.edit(&cfg)
		_, err := cfg.withDefaults()
		if (err == nil) != (c.fault == "") || err != nil && (!errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), c.fault)) {
			t.Errorf("%d: got %v, want %q", c.plan, err, c.fault)
		}
	}
}

func TestPeersUseTheirPortPlans(t *testing.T) {
	a, b, gatherOnly, taken := netip.MustParseAddrPort("192.0.2.1:51820"), netip.MustParseAddrPort("192.0.2.2:51820"),
		netip.MustParseAddrPort("192.0.2.3:51820"), netip.MustParseAddrPort("192.0.2.4:51820")
	another := netip.MustParseAddrPort("192.0.2.5:51820") // one warning covers both: there may be thousands
	cfg, err := Config{
		Device: "eth0", Port: port, Peers: []netip.AddrPort{a, b, taken, another}, GatherOnly: []netip.AddrPort{gatherOnly},
		PeerPlans: map[netip.AddrPort][]uint16{b: {61900, 61001}, gatherOnly: {61500}, taken: {61901, 61777}, another: {61777}},
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	pl := plan{cfg: cfg}
	pl.choosePeers(nil, history{})
	pl.report.Lanes = []uint16{61000, 61001}
	all := pl.assignLanes(portOwners{61777: "x"})
	if want := []uint16{61000, 61001, 61900}; !slices.Equal(all, want) {
		t.Errorf("the tunnel has %d, want %d", all, want)
	}
	var lanes [][]uint16
	for _, p := range pl.peers {
		lanes = append(lanes, p.Lanes)
	}
	if fmt.Sprint(lanes) != "[[61000 61001] [61900 61001] [] [61000 61001] [61000 61001]]" {
		t.Errorf("got %d", lanes)
	}
	if len(pl.report.Warnings) != 2 || !strings.HasPrefix(pl.report.Warnings[0], "5 peers") || !strings.HasPrefix(pl.report.Warnings[1], "port 61777 belongs to x: peers with that port in their port plan (2, the first at 192.0.2.4:51820)") {
		t.Errorf("unexpected warnings: %q", pl.report.Warnings)
	}
}

// follow runs Follow until the test's end. It returns a function that changes the Config, and the reports.
func (s *side) follow(cfg Config) (change func(Config) (Report, error), reports <-chan Report) {
	s.r.Helper()
	return s.followEvery(time.Hour, cfg)
}

// followEvery is follow with that poll interval.
func (s *side) followEvery(every time.Duration, cfg Config) (change func(Config) (Report, error), reports <-chan Report) {
	s.r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.host.pollInterval = every
	changes, out, done := make(chan Change), make(chan Report, 100), make(chan error, 1)
	go func() {
		done <- s.lab.Do(func() error {
			return s.host.Follow(ctx, FollowOptions{
				Config: cfg, Changes: changes, Log: slog.New(slog.DiscardHandler), Attached: func(r Report) { out <- r },
			})
		})
	}()
	s.r.Cleanup(func() {
		cancel()
		expect.NoError(s.r, <-done)
	})
	return func(cfg Config) (report Report, err error) {
		back := make(chan struct{})
		select {
		case changes <- Change{Config: cfg, Done: func(r Report, e error) { report, err = r, e; close(back) }}:
			<-back
		case err = <-done:
			done <- err // for the cleanup
			s.r.Fatal("Follow has ended: ", err)
		}
		return report, err
	}, out
}

// TestPeerChangeLoadsNoProgram: in a large cluster, peers change frequently.
func TestPeerChangeLoadsNoProgram(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	there, other := netip.AddrPortFrom(thereAddr, port), netip.MustParseAddrPort("192.0.2.77:51820")
	cfg.GatherOnly, cfg.Gap, cfg.PeerPlans = []netip.AddrPort{there}, spread.DefaultGap, map[netip.AddrPort][]uint16{}
	change, reports := r.here.follow(cfg)
	r.next(reports)
	before := r.here.status()
	cfg.Peers, cfg.GatherOnly, cfg.PeerPlans = []netip.AddrPort{there, other}, nil, map[netip.AddrPort][]uint16{there: {61900, 61003}}
	report, err := change(cfg)
	if err != nil || len(report.Peers) != 2 || report.Spread == "" {
		t.Fatalf("got %+v, error %v, want no error", report, err)
	}
	st := r.here.status()
	if st.Spread.Program != before.Spread.Program || st.Gather.Program != before.Gather.Program || len(st.Tunnels[0].Peers) != 2 {
		t.Errorf("%+v, before %+v", st, before)
	}
	for _, p := range st.Tunnels[0].Peers {
		if planned := p.Endpoint == there; planned != (len(p.Lanes) == 2 && p.Lanes[0].Port == 61900) || !planned && len(p.Lanes) != spread.MaxPorts {
			t.Errorf("got %+v", p)
		}
	}
	// An invalid change has no effect.
	bad := cfg
	bad.PeerPlans = map[netip.AddrPort][]uint16{there: {53}}
	if _, err := change(bad); !errors.Is(err, ErrInvalid) {
		t.Errorf("unexpected error: %v", err)
	}
	bad = cfg
	bad.Port = 1
	if _, err := change(bad); !errors.Is(err, ErrInvalid) {
		t.Errorf("another tunnel: got error %v, want %v", err, ErrInvalid)
	}
	if after := r.here.status(); fmt.Sprint(after.Tunnels) != fmt.Sprint(st.Tunnels) {
		t.Errorf("%+v, before %+v", after.Tunnels, st.Tunnels)
	}
	// Remove the port plans: the tunnel keeps the shared ports and releases the others.
	cfg.PeerPlans = map[netip.AddrPort][]uint16{}
	if report, err = change(cfg); err != nil || len(report.Lanes) != spread.MaxPorts || report.Lanes[0] != 61000 {
		t.Errorf("got %+v, error %v, want no error", report, err)
	}
	if ports := r.here.status().Tunnels[0].Ports; ports != "61000-61063" {
		t.Errorf("got ports %s, want %q", ports, "61000-61063")
	}
}

// TestInvalidChangeKeepsPreviousConfig: programs that are detached afterwards are attached again.
func TestInvalidChangeKeepsPreviousConfig(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	cfg.Peers = []netip.AddrPort{netip.AddrPortFrom(thereAddr, port)}
	change, reports := r.here.followEvery(200*time.Millisecond, cfg) // long enough for other processes to get the lock
	r.next(reports)
	bad := cfg
	bad.Lanes = spread.MaxPorts + 1
	if _, err := change(bad); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	r.here.detach(0)
	stop, asked := make(chan struct{}), make(chan struct{})
	go func() { // more often than the watcher polls, which must poll nevertheless
		defer close(asked)
		for range time.Tick(50 * time.Millisecond) {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := change(bad); !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
		}
	}()
	if again := r.next(reports); !slices.Equal(again.Peers, cfg.Peers) {
		t.Errorf("got %+v, want Peers %v", again, cfg.Peers)
	}
	close(stop)
	<-asked
	if st := r.here.status(); st == nil || st.Spread.State != "attached" {
		t.Errorf("unexpected status: %+v", st)
	}
}

// TestBoundPortKeepsPlan: any user of the host may bind a port of the tunnel. It was free when the tunnel took it.
func TestBoundPortKeepsPlan(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	there := netip.AddrPortFrom(thereAddr, port)
	cfg.Peers, cfg.PeerPlans = []netip.AddrPort{there}, map[netip.AddrPort][]uint16{there: {61900, 61003}}
	r.here.attach(cfg)
	r.here.socket(61900)
	r.here.attach(cfg)
	if lanes := r.here.status().Tunnels[0].Peers[0].Lanes; len(lanes) != 2 || lanes[0].Port != 61900 {
		t.Errorf("got %d lanes, the first %+v, want those of the plan", len(lanes), lanes[0])
	}
}

// TestPlannedPortsAppearOnWire: flows to a peer use exactly the ports of its plan.
func TestPlannedPortsAppearOnWire(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	there := netip.AddrPortFrom(thereAddr, port)
	cfg.Peers, cfg.PeerPlans = []netip.AddrPort{there}, map[netip.AddrPort][]uint16{there: {61901, 61007, 61444}}
	r.here.attach(cfg)
	seen := map[uint16]bool{}
	senders, receiver := r.senders(), r.there.socket(port)
	r.prove(senders, receiver)
	for _, ports := range r.sources(senders, receiver) {
		for p := range ports {
			seen[p] = true
		}
	}
	if len(seen) != 3 || !seen[61901] || !seen[61007] || !seen[61444] {
		t.Errorf("got %v, want length 3", seen)
	}
}

// BenchmarkReconcile5000Peers measures the plan of a reconcile, without its queries of the kernel.
func BenchmarkReconcile5000Peers(b *testing.B) {
	cfg := Config{Device: "eth0", Port: port, PeerPlans: map[netip.AddrPort][]uint16{}, PeerPortRanges: map[netip.AddrPort]spread.Ports{}}
	for i := range 5000 {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), port)
		cfg.PeerPortRanges[at] = spread.DefaultPorts
		if i%2 == 0 {
			cfg.GatherOnly = append(cfg.GatherOnly, at)
			continue
		}
		cfg.Peers = append(cfg.Peers, at)
		cfg.PeerPlans[at] = []uint16{61000 + uint16(i%900), 61950}
	}
	for b.Loop() {
		c, err := cfg.withDefaults()
		if err != nil {
			b.Fatal(err)
		}
		pl := plan{cfg: c}
		pl.choosePeers(nil, history{})
		pl.report.Lanes = []uint16{61000}
		pl.assignLanes(portOwners{})
		if len(pl.peers) != 5000 || len(byEndpoint(pl.peers)) != 5000 {
			b.Fatal(len(pl.peers))
		}
	}
}
