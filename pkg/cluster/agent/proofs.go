// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// proofs are a mesh reconciler's observations, and its decisions by them.
type proofs struct {
	prover *meshmode.Prover
	guard  *meshmode.Guard
	// strictSince is since when packets for other nodes' pods do not leave in the clear; zero: they may.
	strictSince time.Time
	// allSince is since when each node that takes part is a peer; zero: that is not so. planned are the nodes of the last plan.
	allSince time.Time
	planned  map[string]bool
	// seen is the revision of the RopewalkMesh that was followed last, and opened the last
	// revision to end the strict state.
	seen, opened meshRevision
	routed       map[string]bool // nodes to whose pods routes led into the tunnel, as last applied
	deciding     map[string]bool // the same, of the present plan
}

func newProofs(cfg *Config, saved *savedTunnel) proofs {
	g := &meshmode.Guard{Host: cfg.Guard, Tunnel: cfg.Tunnel, Log: cfg.Log}
	p := proofs{
		guard:  g,
		prover: &meshmode.Prover{Engine: cfg.Engine, Guard: g, Log: cfg.Log, Tunnel: cfg.Tunnel, Port: cfg.ReflectPort, Trigger: cfg.proved, Open: cfg.openAsker},
		routed: map[string]bool{},
	}
	if saved == nil {
		return p
	}
	p.strictSince = saved.StrictSince
	for i := range saved.Peers {
		if name := saved.Peers[i].Node; !slices.Contains(saved.Unrouted, name) {
			p.routed[name] = true
		}
	}
	return p
}

// strictness returns why the node is strict.
func (p *proofs) strictness(c v1alpha1.Cleartext) proof.Strictness {
	switch {
	case allows(c, p.strictSince):
		return proof.Permissive
	case c == v1alpha1.CleartextAuto:
		return proof.Latched
	}
	return proof.Never
}

// updateStrict follows the setting, the latch, and the node's own status, which outlives its
// files. Only a newer revision with Always ends the strict state: another rollout may follow. A
// status from before does not bring it back. The latch also waits for the nodes that joined since
// all were peers, which nothing has proved yet. in.nodesAsOf is when in.nodes were all of the
// cluster (zero: they are). wait is the time until then; 0: nothing is pending.
func (p *proofs) updateStrict(want *intent, in *reconcileInput, propagation time.Duration) (wait time.Duration) {
	st, asOf := &in.lastStatus, in.nodesAsOf
	latched, c := p.prover.Latched(), want.cleartext
	last := meshRevision{types.UID(st.MeshUID), st.MeshGeneration}
	newer := want.revision.follows(last) && want.revision.follows(p.seen)
	p.seen = want.revision
	switch {
	case c == v1alpha1.CleartextAlways && newer:
		p.strictSince, p.allSince, p.opened = time.Time{}, time.Time{}, want.revision
	case !p.strictSince.IsZero():
	case st.StrictSince != nil && !p.opened.follows(last):
		p.strictSince = st.StrictSince.Time
	case c == v1alpha1.CleartextAlways:
	case c != v1alpha1.CleartextAuto || latched && (asOf.IsZero() || asOf.After(p.allSince)) && !p.joined(in.nodes):
		p.strictSince = time.Unix(time.Now().Unix(), 0) // as the API stores it
	case latched:
		return propagation // until the next look
	}
	return 0
}

// joined reports whether there is a node that the last plan did not have.
func (p *proofs) joined(nodes []mesh.Node) bool {
	return slices.ContainsFunc(nodes, func(n mesh.Node) bool { return !p.planned[n.Name] })
}

// meshRevision is a version of the RopewalkMesh.
type meshRevision struct {
	uid        types.UID
	generation int64
}

// follows reports whether r came after o. A RopewalkMesh that is deleted and created again begins with generation 1.
func (r meshRevision) follows(o meshRevision) bool {
	return r.uid != o.uid && r.uid != "" && o.uid != "" || r.generation > o.generation
}

// leadsInto decides for mesh.Tunnel, once for each node of a plan.
func (p *proofs) leadsInto(node string, key noise.PublicKey) bool {
	leads, decided := p.deciding[node]
	if !decided {
		leads = p.prover.LeadsInto(key, p.routed[node])
		p.deciding[node] = leads
	}
	return leads
}

// applied tells the prover of the outcome of a reconcile.
func (p *proofs) applied(want *intent, nodes []mesh.Node, plan *mesh.TunnelPlan, r *result, err error) {
	if err != nil {
		p.prover.Failed(faultOf(err), err.Error())
		p.prover.Start()
		return
	}
	strictness := p.strictness(want.cleartext)
	all := want.cleartext == v1alpha1.CleartextAuto && len(want.pods) > 0 && len(plan.WithoutTunnel) == 0
	if !all {
		p.allSince = time.Time{}
	} else if p.allSince.IsZero() {
		p.allSince = time.Now()
	}
	p.planned = make(map[string]bool, len(nodes))
	for i := range nodes {
		p.planned[nodes[i].Name] = true
	}
	p.routed = map[string]bool{}
	for _, peer := range plan.Peers {
		p.routed[peer.Node] = strictness != proof.Permissive || p.deciding[peer.Node]
	}
	own := tunnelAddrs(r.saved.Pods)
	p.prover.Applied(meshmode.Applied{
		Peers: p.peersOf(plan, own), Addresses: own, All: all, Strictness: strictness, PostQuantum: want.postQuantum, Changed: r.changes > 0,
	})
	p.prover.Start()
}

// peersOf returns the nodes that are peers, each with its address in the tunnel, of an IP version that this node has there.
func (p *proofs) peersOf(plan *mesh.TunnelPlan, own []netip.Addr) []proof.Peer {
	pods := make(map[netip.Prefix]bool, len(plan.Routes)+len(plan.Unrouted))
	for _, prefix := range slices.Concat(plan.Routes, plan.Unrouted) {
		pods[prefix] = true
	}
	all := make([]proof.Peer, 0, len(plan.Peers))
	for i := range plan.Peers {
		peer := &plan.Peers[i]
		if peer.IsExternal() || !peer.Replaces.IsZero() {
			continue
		}
		next := proof.Peer{Key: peer.Key, Routed: p.routed[peer.Node]}
		for _, prefix := range peer.AllowedIPs {
			a := host.SourceAddress(prefix).Addr()
			if pods[prefix] && slices.ContainsFunc(own, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
				next.Address = a
				break
			}
		}
		all = append(all, next)
	}
	return all
}

// tunnelAddrs returns the node's own addresses in the tunnel.
func tunnelAddrs(pods []netip.Prefix) (all []netip.Addr) {
	for _, p := range pods {
		all = append(all, host.SourceAddress(p).Addr())
	}
	return all
}

// routesError is the failure to set routes.
type routesError struct{ error }

func (e *routesError) Unwrap() error { return e.error }

// faultOf returns why a tunnel is not up after a reconcile with that error.
func faultOf(err error) proof.TunnelFault {
	if fault := engine.FaultOf(err); fault != "" {
		return fault
	}
	if _, ok := errors.AsType[*routesError](err); ok {
		return proof.RoutesMissing
	}
	return proof.OtherFault
}

// unroutedNodes returns the names of the peers to whose pods no routes lead into the tunnel, sorted.
func (p *proofs) unroutedNodes(plan *mesh.TunnelPlan, allowed bool) (names []string) {
	if !allowed {
		return nil
	}
	for i := range plan.Peers {
		if peer := &plan.Peers[i]; !peer.IsExternal() && !p.deciding[peer.Node] {
			names = append(names, peer.Node)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// lostNodes returns the nodes that do not answer, for the status; nil: there are none.
func lostNodes(o *meshmode.Outcome, owners mesh.KeyOwners) *v1alpha1.StalePeers {
	var names []string
	for _, key := range o.Lost {
		if name := owners[key]; name != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return &v1alpha1.StalePeers{Count: int32(len(names)), Nodes: names[:min(len(names), v1alpha1.MaxStaleNodes)]}
}

// guardClasses returns the guard's prefixes for a plan. All that leads into the tunnel is remote,
// but for the cluster's prefixes of pods themselves, of which no node has the rest. If two lists
// have the same prefix, the later one here applies: own pods are also exempt in a plan. The
// node's own addresses among its pods are exempt, because what it sends itself is no pod's
// packet.
func guardClasses(plan *mesh.TunnelPlan, cluster []netip.Prefix, own []netip.Addr) map[netip.Prefix]programs.GuardClass {
	classes := make(map[netip.Prefix]programs.GuardClass, len(plan.Routes)+len(plan.Beside)+len(plan.Pods)+len(plan.Unrouted)+len(cluster)+len(own))
	for _, list := range []struct {
		prefixes []netip.Prefix
		class    programs.GuardClass
	}{
		{plan.Unrouted, programs.GuardClassUnknown},
		{plan.Routes, programs.GuardClassRemote},
		{cluster, programs.GuardClassUnknown},
		{plan.Beside, programs.GuardClassExempt},
		{plan.Pods, programs.GuardClassLocal},
	} {
		for _, p := range list.prefixes {
			classes[p.Masked()] = list.class
		}
	}
	for _, a := range own {
		classes[netip.PrefixFrom(a, a.BitLen())] = programs.GuardClassExempt
	}
	return classes
}
