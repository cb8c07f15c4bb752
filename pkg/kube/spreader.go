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

// spreader spreads and gathers for a WireGuard that others run.
type spreader struct {
	cfg      Config
	host     *adopt.Host
	watching map[string]*watching // by device
	port     uint16               // 0: not known yet
	ways     ways
	news     news
	apart    apart
	planner  planner
	swept    bool   // what an earlier agent left is dealt with
	again    func() // has all looked at again
}

// newSpreader returns one that goes on where an earlier agent ended, which spread for the tunnel on a port; 0: none is known.
func newSpreader(cfg Config, earlier uint16, again func()) *spreader {
	return &spreader{
		cfg: cfg, host: &adopt.Host{FS: cfg.BPF}, watching: map[string]*watching{}, port: earlier,
		planner: planner{read: hostnet.RSSFor, log: cfg.Log}, again: again,
	}
}

// earlierPort is that of the tunnel which the node's agent has told of, in spread mode.
func earlierPort(st *v1alpha1.NodeStatus) uint16 {
	if st.Mode != v1alpha1.ModeSpread || len(st.Endpoints) == 0 {
		return 0
	}
	e, _ := netip.ParseAddrPort(string(st.Endpoints[0]))
	return e.Port()
}

func (s *spreader) do(ctx context.Context, l look) (result, error) {
	r := result{spread: s.devices} // counters that come and go look like ones that begin anew
	port, tunnels, err := s.findTunnel(uint16(l.spec.Port))
	if err != nil {
		return s.asBefore(l), err
	}
	if s.port != 0 && s.port != port { // the tunnel was made anew
		if err := s.undo(ctx); err != nil {
			return r, err
		}
	}
	s.port = port
	r.status = v1alpha1.NodeStatus{Endpoints: endpointsOf(l.own, port), PodCIDRs: cidrsOf(l.own), SpreadPorts: portsOf(s.cfg.Ports)}
	known, wait := s.news.known(&l.told, &r.status, s.cfg.Learn)
	plan := mesh.Spread(l.own.Name, l.nodes, known)
	r.wait = wait
	s.meet(&r, &plan, tunnels)
	r.status.Peers, r.status.SpreadsTo = int32(len(plan.Peers)), int32(plan.SpreadsTo())
	r.problems = plan.Problems
	configs, err := s.configs(plan, l.fresh)
	if err != nil {
		r.status.Gathers, r.status.Plans = len(s.watching) > 0, l.told.Plans
		return r, err
	}
	err = s.settle(ctx, &r, configs)
	r.status.Gathers = s.gathers(configs)
	s.planner.plan(&r, configs, s.cfg.Ports)
	return r, err
}

// findTunnel returns the port of the tunnel, and all tunnels that there are.
func (s *spreader) findTunnel(asked uint16) (port uint16, tunnels []adopt.Tunnel, err error) {
	if tunnels, err = (adopt.WireGuard{}).Tunnels(); err == nil {
		port, err = s.findPort(asked, tunnels)
	}
	return port, tunnels, err
}

// devices are what is attached. It may be called concurrently with all else.
func (s *spreader) devices(ctx context.Context) ([]adopt.DeviceStatus, error) {
	return s.host.Status(ctx, "")
}

// asBefore is what to tell when nothing was found out: what is attached still is.
func (s *spreader) asBefore(l look) (r result) {
	r.spread = s.devices
	if len(s.watching) > 0 {
		r.status = *l.told.DeepCopy()
		r.status.Gathers = true
	}
	return r
}

// gathers tells whether what comes from most of the peers is gathered. A single one, where it says that it is, may be behind a
// device that nothing can be attached to, or may not have come in there. An error elsewhere changes nothing of that.
func (s *spreader) gathers(configs map[string]adopt.Config) bool {
	from, all := 0, 0
	for device, cfg := range configs {
		all += len(cfg.PortsOf)
		if w := s.watching[device]; w != nil {
			from += w.gathersFrom(cfg)
		}
	}
	return 2*from > all
}

// configs are what to attach, by the device that leads to the peers. Those without a way are left out. fresh: the ways may be
// others than before.
func (s *spreader) configs(plan mesh.SpreadPlan, fresh bool) (map[string]adopt.Config, error) {
	if fresh {
		s.ways = ways{}
	}
	configs := map[string]adopt.Config{}
	for i := range plan.Peers {
		p := &plan.Peers[i]
		for _, e := range p.Endpoints {
			device, err := s.ways.towards(e.Addr())
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
func (s *spreader) config(device string) adopt.Config {
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

// settle makes what is watched what is wanted. Where a device fails, the others go on.
func (s *spreader) settle(ctx context.Context, r *result, wanted map[string]adopt.Config) error {
	var errs []error
	if !s.swept {
		err := s.detach(ctx, func(device string) bool { _, still := wanted[device]; return !still })
		s.swept = err == nil
		errs = append(errs, err)
	}
	for _, device := range slices.Sorted(maps.Keys(s.watching)) { // so that the same errors are the same text
		w := s.watching[device]
		cfg, still := wanted[device]
		if n := w.mended(); !w.failed { // else it may be what was refused that could be done in the end
			r.mended += n
		}
		switch {
		case !still:
			r.changes++
			w.stop()
			if err := s.host.Detach(ctx, device, s.port); err != nil {
				errs, s.swept = append(errs, err), false // the next look finds it
			}
			delete(s.watching, device)
		case w.failed || !sameConfig(cfg, w.cfg):
			r.changes++
			errs = append(errs, w.change(ctx, cfg))
		}
	}
	for _, device := range slices.Sorted(maps.Keys(wanted)) {
		cfg := wanted[device]
		if s.watching[device] != nil {
			continue
		}
		r.changes++
		w, err := watch(ctx, s.host, cfg, s.cfg.Log, s.again)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.watching[device] = w
	}
	r.changes += r.mended
	return errors.Join(errs...)
}

func sameConfig(a, b adopt.Config) bool {
	return a.Port == b.Port && maps.Equal(a.PortsOf, b.PortsOf) && maps.EqualFunc(a.PlanOf, b.PlanOf, slices.Equal[[]uint16]) &&
		slices.Equal(a.Peers, b.Peers) && slices.Equal(a.Quiet, b.Quiet)
}

// undo detaches from all devices, those of an earlier agent included.
func (s *spreader) undo(ctx context.Context) error {
	s.leave()
	s.ways = ways{} // nobody follows the routes from now on
	if s.port == 0 {
		tunnels, err := adopt.WireGuard{}.Tunnels()
		if err != nil {
			return err
		}
		if s.port, err = s.findPort(0, tunnels); err != nil {
			return nil //nolint:nilerr // without a tunnel there is nothing that it could be attached for
		}
	}
	return s.detach(ctx, func(string) bool { return true })
}

// detach ends what is attached for the tunnel on some devices.
func (s *spreader) detach(ctx context.Context, from func(device string) bool) error {
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

func (s *spreader) leave() {
	for device, w := range s.watching {
		w.stop()
		delete(s.watching, device)
	}
}

// endpointsOf are the node's addresses with the tunnel's port, or the one that administrators say. Others believe no more.
func endpointsOf(n mesh.Node, port uint16) (all []v1alpha1.Endpoint) {
	addrs := n.Addrs
	if n.Endpoint.IsValid() {
		addrs = []netip.Addr{n.Endpoint}
	}
	for _, a := range mesh.Usable(addrs) {
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
