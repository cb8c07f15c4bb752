// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/cluster/announce"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// spreadReconciler is the modeReconciler of spread mode: it spreads and gathers for a WireGuard that another program runs.
type spreadReconciler struct {
	cfg            Config
	host           *spreader.Host
	follower       *deviceFollower // nil: nothing is attached, as far as this agent knows
	port           uint16          // of the tunnel; 0: not known yet
	egressDevices  egressDevices
	propagation    announce.Propagation
	unmatchedPeers unmatchedPeers
	planner        portPlanner
	detached       bool   // without peers: the programs are detached, also an earlier agent's
	trigger        func() // requests a reconcile
}

// newSpreadReconciler returns a reconciler without a follower.
func newSpreadReconciler(cfg Config, trigger func()) *spreadReconciler {
	return &spreadReconciler{
		cfg: cfg, host: &spreader.Host{FS: cfg.BPF},
		planner: portPlanner{read: hostnet.RSSFor, log: cfg.Log}, trigger: trigger,
	}
}

// lastSpreadPort returns the tunnel's port in an announcement of spread mode, or 0.
func lastSpreadPort(st *v1alpha1.AnnouncementSpec) uint16 {
	if st.Mode != v1alpha1.ModeSpread || len(st.Endpoints) == 0 {
		return 0
	}
	e, _ := netip.ParseAddrPort(string(st.Endpoints[0]))
	return e.Port()
}

func (s *spreadReconciler) reconcile(ctx context.Context, in reconcileInput) (result, error) {
	s.port = cmp.Or(s.port, lastSpreadPort(&in.announced))
	r := result{spread: s.devices} // also on errors: metrics that vanish and return look like counter resets
	port, tunnels, err := s.findTunnel(in.settings.Port)
	if err != nil {
		return s.unchangedResult(in), err
	}
	if s.port != 0 && s.port != port { // the tunnel was created anew
		if err := s.tearDown(ctx); err != nil {
			return r, err
		}
	}
	s.port = port
	r.announcement = v1alpha1.AnnouncementSpec{Endpoints: announce.EndpointsOf(in.self, port), PodCIDRs: announce.CIDRsOf(in.self), SpreadPorts: announce.PortsOf(s.cfg.Ports)}
	propagated, wait := s.propagation.Done(&in.announced, &r.announcement, s.cfg.Propagation)
	plan := mesh.Spread(in.self.Name, in.nodes, propagated)
	r.requeueAfter = wait
	s.matchTunnel(&r, &plan, tunnels)
	r.status.Peers, r.status.SpreadsTo = int32(len(plan.Peers)), int32(plan.SpreadsTo())
	r.problems = plan.Problems
	mark := markOf(tunnels, port)
	configs, err := s.configs(plan, mark, in.hostMayHaveChanged)
	if err != nil {
		r.announcement.Gathers, r.announcement.Plans = s.follower != nil, in.announced.Plans
		return r, err
	}
	wanted := s.merged(configs)
	err = s.apply(ctx, &r, wanted)
	r.announcement.Gathers = wanted != nil && s.gathers(wanted)
	s.planner.plan(&r, configs, mark, s.cfg.Ports)
	return r, err
}

// findTunnel returns the port of the tunnel, and all tunnels of the host.
func (s *spreadReconciler) findTunnel(requested uint16) (port uint16, tunnels []spreader.Tunnel, err error) {
	if tunnels, err = (spreader.WireGuard{}).Tunnels(); err == nil {
		port, err = s.tunnelPort(requested, tunnels)
	}
	return port, tunnels, err
}

// devices returns the attached devices. It is safe for concurrent use.
func (s *spreadReconciler) devices(ctx context.Context) ([]spreader.DeviceStatus, error) {
	return s.host.StatusForMetrics(ctx)
}

// unchangedResult returns the last status, for when the tunnel cannot be read: attached programs stay attached.
func (s *spreadReconciler) unchangedResult(in reconcileInput) (r result) {
	r.spread = s.devices
	if s.follower != nil {
		r.status, r.announcement = *in.lastStatus.DeepCopy(), *in.announced.DeepCopy()
		r.announcement.Gathers = true
	}
	return r
}

// gathers reports whether traffic from more than half of the peers is gathered. A single peer may not fit into the programs' map.
func (s *spreadReconciler) gathers(cfg *spreader.Config) bool {
	return s.follower != nil && 2*s.follower.gatheringPeers(*cfg) > len(cfg.PeerPortRanges)
}

// markOf returns the mark of the datagrams of the tunnel with that port; 0: none.
func markOf(tunnels []spreader.Tunnel, port uint16) uint32 {
	for i := range tunnels {
		if tunnels[i].Port == port {
			return tunnels[i].FwMark
		}
	}
	return 0
}

// configs returns the configuration of each device that leads to peers. It leaves out peers that
// are not reachable. mark is the mark of the tunnel's datagrams. reread: routes may have changed
// since the last call.
func (s *spreadReconciler) configs(plan mesh.SpreadPlan, mark uint32, reread bool) (map[string]spreader.Config, error) {
	if reread || mark != s.egressDevices.mark {
		s.egressDevices = egressDevices{mark: mark}
	}
	configs := map[string]spreader.Config{}
	for i := range plan.Peers {
		p := &plan.Peers[i]
		for _, e := range p.Endpoints {
			device, err := s.egressDevices.lookup(e.Addr())
			if err != nil {
				return nil, err
			}
			if device == "" {
				continue
			}
			cfg, ok := configs[device]
			if !ok {
				cfg = s.config(device)
			}
			configs[device] = withPeer(cfg, p, e)
		}
	}
	return configs, nil
}

// config returns the configuration of a device without peers.
func (s *spreadReconciler) config(device string) spreader.Config {
	return spreader.Config{
		Device: device, Port: s.port, Ports: s.cfg.Ports, AnySocket: s.cfg.AnySocket, RestartStalledPeers: s.cfg.RestartStalledPeers, PeerPorts: spread.DefaultPorts,
		PeerPortRanges: map[netip.AddrPort]spread.Ports{}, PeerPlans: map[netip.AddrPort][]uint16{}, Gather: spreader.GatherAuto,
		Gap: spread.DefaultGap,
	}
}

// merged returns one configuration with all peers, of the followed device if it leads to peers,
// else of the device with most peers. The others also get the programs, since peers may send by
// any device. It returns nil without peers.
func (s *spreadReconciler) merged(configs map[string]spreader.Config) *spreader.Config {
	best := ""
	for _, device := range slices.Sorted(maps.Keys(configs)) {
		if best == "" || len(configs[device].PeerPortRanges) > len(configs[best].PeerPortRanges) {
			best = device
		}
	}
	if best == "" {
		return nil
	}
	if s.follower != nil && len(configs[s.follower.wanted.Device].PeerPortRanges) > 0 {
		best = s.follower.wanted.Device
	}
	all := s.config(best)
	for _, cfg := range configs {
		all.Peers, all.GatherOnly = append(all.Peers, cfg.Peers...), append(all.GatherOnly, cfg.GatherOnly...)
		maps.Copy(all.PeerPortRanges, cfg.PeerPortRanges)
		maps.Copy(all.PeerPlans, cfg.PeerPlans)
	}
	slices.SortFunc(all.Peers, netip.AddrPort.Compare)
	slices.SortFunc(all.GatherOnly, netip.AddrPort.Compare)
	return &all
}

func withPeer(cfg spreader.Config, p *mesh.SpreadPeer, at netip.AddrPort) spreader.Config {
	cfg.PeerPortRanges[at] = p.Gather
	if !p.Spread {
		cfg.GatherOnly = append(cfg.GatherOnly, at)
		return cfg
	}
	cfg.Peers = append(cfg.Peers, at)
	if plan := p.Plans.For(at.Addr()); len(plan) > 0 {
		cfg.PeerPlans[at] = plan
	}
	return cfg
}

// apply attaches, changes or detaches the programs until they match the wanted configuration; nil: none.
func (s *spreadReconciler) apply(ctx context.Context, r *result, wanted *spreader.Config) error {
	if f := s.follower; f != nil {
		if err := f.ended(); err != nil { // it does not attach again: another version's agent would do the same
			return err
		}
		if n := f.takeRepairs(); !f.changeFailed { // after a failed change, the repair may be that change, retried
			r.repaired += n
			r.changes += n
		}
		switch {
		case wanted == nil || wanted.Device != f.wanted.Device:
			r.changes++
			s.stop()
			s.detached = false
		case f.changeFailed || !sameConfig(*wanted, f.wanted):
			r.changes++
			return f.change(ctx, *wanted)
		default:
			return nil
		}
	}
	if wanted == nil {
		if s.detached {
			return nil
		}
		err := s.host.Detach(ctx, s.port) // also what an earlier agent left; the next reconcile retries
		s.detached = err == nil
		return err
	}
	r.changes++
	f, err := followDevice(ctx, s.host, *wanted, s.cfg.Log, s.trigger)
	if err != nil {
		return err
	}
	s.follower = f
	return nil
}

func sameConfig(a, b spreader.Config) bool {
	return a.Port == b.Port && maps.Equal(a.PeerPortRanges, b.PeerPortRanges) && maps.EqualFunc(a.PeerPlans, b.PeerPlans, slices.Equal[[]uint16]) &&
		slices.Equal(a.Peers, b.Peers) && slices.Equal(a.GatherOnly, b.GatherOnly)
}

// tearDown implements modeReconciler. It detaches from all devices, including the devices of an
// earlier agent.
func (s *spreadReconciler) tearDown(ctx context.Context) error {
	s.stop()
	s.egressDevices = egressDevices{} // it becomes outdated: nobody watches the routes from now on
	if s.port == 0 {
		tunnels, err := spreader.WireGuard{}.Tunnels()
		if err != nil {
			return err
		}
		if s.port, err = s.tunnelPort(0, tunnels); err != nil {
			return nil //nolint:nilerr // without a tunnel, nothing can be attached
		}
	}
	return s.host.Detach(ctx, s.port)
}

func (s *spreadReconciler) stop() {
	if s.follower != nil {
		s.follower.stop()
		s.follower = nil
	}
}
