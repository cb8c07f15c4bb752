// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/adopt"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/mesh"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// spreadReconciler spreads and gathers for a WireGuard that others run.
type spreadReconciler struct {
	cfg            Config
	host           *adopt.Host
	followers      map[string]*deviceFollower // by device
	port           uint16                     // 0: not known yet
	egressDevices  egressDevices
	announcement   announcement
	unmatchedPeers unmatchedPeers
	planner        portPlanner
	detachedStale  bool   // what an earlier agent left is dealt with
	trigger        func() // has all looked at again
}

// newSpreadReconciler returns one that goes on where an earlier agent ended, which spread for the tunnel on a port; 0: none is known.
func newSpreadReconciler(cfg Config, earlier uint16, again func()) *spreadReconciler {
	return &spreadReconciler{
		cfg: cfg, host: &adopt.Host{FS: cfg.BPF}, followers: map[string]*deviceFollower{}, port: earlier,
		planner: portPlanner{read: hostnet.RSSFor, log: cfg.Log}, trigger: again,
	}
}

// lastSpreadPort is that of the tunnel which the node's agent has told of, in spread mode.
func lastSpreadPort(st *v1alpha1.NodeStatus) uint16 {
	if st.Mode != v1alpha1.ModeSpread || len(st.Endpoints) == 0 {
		return 0
	}
	e, _ := netip.ParseAddrPort(string(st.Endpoints[0]))
	return e.Port()
}

func (s *spreadReconciler) reconcile(ctx context.Context, l reconcileInput) (result, error) {
	r := result{spread: s.devices} // collectCounters that come and go look like ones that begin anew
	port, tunnels, err := s.findTunnel(uint16(l.spec.Port))
	if err != nil {
		return s.unchangedResult(l), err
	}
	if s.port != 0 && s.port != port { // the tunnel was made anew
		if err := s.tearDown(ctx); err != nil {
			return r, err
		}
	}
	s.port = port
	r.status = v1alpha1.NodeStatus{Endpoints: endpointsOf(l.self, port), PodCIDRs: cidrsOf(l.self), SpreadPorts: portsOf(s.cfg.Ports)}
	known, wait := s.announcement.propagated(&l.lastStatus, &r.status, s.cfg.Propagation)
	plan := mesh.Spread(l.self.Name, l.nodes, known)
	r.requeueAfter = wait
	s.matchTunnel(&r, &plan, tunnels)
	r.status.Peers, r.status.SpreadsTo = int32(len(plan.Peers)), int32(plan.SpreadsTo())
	r.problems = plan.Problems
	configs, err := s.configs(plan, l.hostMayHaveChanged)
	if err != nil {
		r.status.Gathers, r.status.Plans = len(s.followers) > 0, l.lastStatus.Plans
		return r, err
	}
	err = s.applyConfigs(ctx, &r, configs)
	r.status.Gathers = s.gathers(configs)
	s.planner.plan(&r, configs, s.cfg.Ports)
	return r, err
}

// findTunnel returns the port of the tunnel, and all tunnels that there are.
func (s *spreadReconciler) findTunnel(asked uint16) (port uint16, tunnels []adopt.Tunnel, err error) {
	if tunnels, err = (adopt.WireGuard{}).Tunnels(); err == nil {
		port, err = s.tunnelPort(asked, tunnels)
	}
	return port, tunnels, err
}

// devices are what is attached. It may be called concurrently with all else.
func (s *spreadReconciler) devices(ctx context.Context) ([]adopt.DeviceStatus, error) {
	return s.host.Status(ctx, "")
}

// unchangedResult is what to tell when nothing was found out: what is attached still is.
func (s *spreadReconciler) unchangedResult(l reconcileInput) (r result) {
	r.spread = s.devices
	if len(s.followers) > 0 {
		r.status = *l.lastStatus.DeepCopy()
		r.status.Gathers = true
	}
	return r
}

// gathers tells whether what comes from most of the peers is gathered. A single one, where it says that it is, may be behind a
// device that nothing can be attached to, or may not have come in there. An error elsewhere changes nothing of that.
func (s *spreadReconciler) gathers(configs map[string]adopt.Config) bool {
	from, all := 0, 0
	for device, cfg := range configs {
		all += len(cfg.PortsOf)
		if w := s.followers[device]; w != nil {
			from += w.gatheringPeers(cfg)
		}
	}
	return 2*from > all
}

// configs are what to attach, by the device that leads to the peers. Those without a way are left out. fresh: the ways may be
// others than before.
func (s *spreadReconciler) configs(plan mesh.SpreadPlan, fresh bool) (map[string]adopt.Config, error) {
	if fresh {
		s.egressDevices = egressDevices{}
	}
	configs := map[string]adopt.Config{}
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

// config is that of a device without peers.
func (s *spreadReconciler) config(device string) adopt.Config {
	return adopt.Config{
		Device: device, Port: s.port, Ports: s.cfg.Ports, Mark: s.cfg.Mark, PeerPorts: spread.DefaultPorts,
		PortsOf: map[netip.AddrPort]spread.Ports{}, PlanOf: map[netip.AddrPort][]uint16{}, Gather: adopt.GatherAuto,
		Gap: spread.DefaultGap, // asking the program that is there takes CAP_SYS_ADMIN, which no agent has
	}
}

func withPeer(cfg adopt.Config, p *mesh.SpreadPeer, at netip.AddrPort) adopt.Config {
	cfg.PortsOf[at] = p.Gather
	if !p.Spread {
		cfg.Quiet = append(cfg.Quiet, at)
		return cfg
	}
	cfg.Peers = append(cfg.Peers, at)
	if plan := p.Plans.For(at.Addr()); len(plan) > 0 {
		cfg.PlanOf[at] = plan
	}
	return cfg
}

// applyConfigs makes what is watched what is wanted. Where a device fails, the others go on.
func (s *spreadReconciler) applyConfigs(ctx context.Context, r *result, wanted map[string]adopt.Config) error {
	var errs []error
	if !s.detachedStale {
		err := s.detach(ctx, func(device string) bool { _, still := wanted[device]; return !still })
		s.detachedStale = err == nil
		errs = append(errs, err)
	}
	for _, device := range slices.Sorted(maps.Keys(s.followers)) { // so that the same errors are the same text
		w := s.followers[device]
		cfg, still := wanted[device]
		if n := w.takeRepairs(); !w.changeFailed { // else it may be what was refused that could be done in the end
			r.repaired += n
		}
		switch {
		case !still:
			r.changes++
			w.stop()
			if err := s.host.Detach(ctx, device, s.port); err != nil {
				errs, s.detachedStale = append(errs, err), false // the next look finds it
			}
			delete(s.followers, device)
		case w.changeFailed || !sameConfig(cfg, w.wanted):
			r.changes++
			errs = append(errs, w.change(ctx, cfg))
		}
	}
	for _, device := range slices.Sorted(maps.Keys(wanted)) {
		cfg := wanted[device]
		if s.followers[device] != nil {
			continue
		}
		r.changes++
		w, err := followDevice(ctx, s.host, cfg, s.cfg.Log, s.trigger)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.followers[device] = w
	}
	r.changes += r.repaired
	return errors.Join(errs...)
}

func sameConfig(a, b adopt.Config) bool {
	return a.Port == b.Port && maps.Equal(a.PortsOf, b.PortsOf) && maps.EqualFunc(a.PlanOf, b.PlanOf, slices.Equal[[]uint16]) &&
		slices.Equal(a.Peers, b.Peers) && slices.Equal(a.Quiet, b.Quiet)
}

// tearDown detaches from all devices, those of an earlier agent included.
func (s *spreadReconciler) tearDown(ctx context.Context) error {
	s.stop()
	s.egressDevices = egressDevices{} // nobody follows the routes from now on
	if s.port == 0 {
		tunnels, err := adopt.WireGuard{}.Tunnels()
		if err != nil {
			return err
		}
		if s.port, err = s.tunnelPort(0, tunnels); err != nil {
			return nil //nolint:nilerr // without a tunnel there is nothing that it could be attached for
		}
	}
	return s.detach(ctx, func(string) bool { return true })
}

// detach ends what is attached for the tunnel on some devices.
func (s *spreadReconciler) detach(ctx context.Context, from func(device string) bool) error {
	all, err := s.host.Status(ctx, "")
	errs := []error{err}
	for _, d := range all {
		ours := slices.ContainsFunc(d.Tunnels, func(t adopt.TunnelStatus) bool { return t.Port == s.port })
		if ours && from(d.Device) {
			errs = append(errs, s.host.Detach(ctx, d.Device, s.port))
		}
	}
	return errors.Join(errs...)
}

func (s *spreadReconciler) stop() {
	for device, w := range s.followers {
		w.stop()
		delete(s.followers, device)
	}
}

// endpointsOf are the node's addresses with the tunnel's port, or the one that administrators say. Others believe no more.
func endpointsOf(n mesh.Node, port uint16) (all []v1alpha1.Endpoint) {
	addrs := n.Addrs
	if n.Endpoint.IsValid() {
		addrs = []netip.Addr{n.Endpoint}
	}
	for _, a := range mesh.UsableAddrs(addrs) {
		all = append(all, v1alpha1.Endpoint(netip.AddrPortFrom(a, port).String()))
	}
	return all
}

func cidrsOf(n mesh.Node) (all []v1alpha1.CIDR) {
	for _, p := range n.PodCIDRs {
		all = append(all, v1alpha1.CIDR(p.String()))
	}
	return all
}
