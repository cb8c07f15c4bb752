// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"

	"github.com/ropewalk/ropewalk/pkg/adopt"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/mesh"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// portPlanner plans the ports that others should take towards the node. It reads the NIC at each look, and computes only when that
// has changed. The zero planner with a read and a log is ready for use.
type portPlanner struct {
	// read is hostnet.RSSFor.
	read   func(local, peer netip.Addr, mark uint32) (hostnet.RSS, error)
	log    *slog.Logger
	cache  [2]cachedPlan // by version of IP
	logged [2]string     // why nothing is planned anew
}

// cachedPlan is what was planned last, and from what.
type cachedPlan struct {
	rss   spread.RSS
	to    netip.AddrPort
	ports []uint16
	err   error
}

// plan adds the plans to what is told. Where a NIC does not let ports choose, people are told what to do.
func (p *portPlanner) plan(r *result, configs map[string]adopt.Config, candidates spread.Ports) {
	for i, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
		to, peer := ingress(r.status.Endpoints, configs, family)
		if !peer.IsValid() {
			continue
		}
		rss, err := p.read(netip.Addr{}, peer, 0)
		last := &p.cache[i]
		switch {
		case errors.Is(err, hostnet.ErrNoRSS):
			*last = cachedPlan{}
		case err != nil: // of the moment, perhaps
		case last.to != to || !reflect.DeepEqual(last.rss, rss.RSS):
			*last = cachedPlan{rss: rss.RSS, to: to}
			last.ports, last.err = mesh.PlanFor(&rss.RSS, to, candidates)
		}
		p.logOnce(i, family, cmp.Or(err, last.err))
		if errors.Is(last.err, spread.ErrNotByPort) {
			r.notes = append(r.notes, last.err.Error())
		}
		if len(last.ports) > 0 {
			r.status.Plans = append(r.status.Plans, v1alpha1.Plan{IPFamily: family, Ports: toAPIPorts(last.ports)})
		}
	}
}

// logOnce logs why nothing is planned anew, unless it was said last.
func (p *portPlanner) logOnce(i int, family v1alpha1.IPFamily, why error) {
	text := ""
	if why != nil {
		text = why.Error()
	}
	if text != p.logged[i] && text != "" {
		p.log.Debug("no ports are planned anew", "family", family, "why", text)
	}
	p.logged[i] = text
}

// ingress returns the node's endpoint of a version of IP, and one of the peers that are reached by the same device as all others of
// that version, but for a few; none if there are several devices, for one plan is not for all of them. The few may be one node
// that tells of an address elsewhere.
func ingress(own []v1alpha1.Endpoint, configs map[string]adopt.Config, family v1alpha1.IPFamily) (to netip.AddrPort, peer netip.Addr) {
	for _, text := range own {
		if e, err := netip.ParseAddrPort(string(text)); err == nil && ipFamilyOf(e.Addr()) == family {
			to = e
			break
		}
	}
	if !to.IsValid() {
		return to, peer
	}
	most, all := 0, 0
	for _, cfg := range configs {
		first, n := lowestOf(cfg.PortsOf, family)
		if all += n; n > most {
			peer, most = first, n
		}
	}
	const few = 8 // one in
	if few*(all-most) > all {
		peer = netip.Addr{}
	}
	return to, peer
}

// lowestOf returns the first of the addresses of a version of IP, and how many there are.
func lowestOf(peers map[netip.AddrPort]spread.Ports, family v1alpha1.IPFamily) (first netip.Addr, n int) {
	for e := range peers {
		if ipFamilyOf(e.Addr()) != family {
			continue
		}
		if n++; !first.IsValid() || e.Addr().Less(first) {
			first = e.Addr()
		}
	}
	return first, n
}

func ipFamilyOf(a netip.Addr) v1alpha1.IPFamily {
	if a.Unmap().Is4() {
		return v1alpha1.IPv4
	}
	return v1alpha1.IPv6
}

func toAPIPorts(plan []uint16) []v1alpha1.Port {
	ports := make([]v1alpha1.Port, len(plan))
	for i, p := range plan {
		ports[i] = v1alpha1.Port(p)
	}
	return ports
}
