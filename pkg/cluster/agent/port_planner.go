// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// portPlanner plans the source ports that other nodes should use towards this one. It reads the NIC's RSS configuration in each
// reconcile and computes a plan only when that has changed. read and log must be set.
type portPlanner struct {
	// read is hostnet.RSSFor, or a fake.
	read   func(local, peer netip.Addr, scope, mark uint32) (hostnet.RSS, error)
	log    *slog.Logger
	cache  [2]cachedPlan // by IP family
	logged [2]string     // the reason, per IP family, that was logged last
}

// cachedPlan is a plan with the inputs that it was computed from.
type cachedPlan struct {
	rss   spread.RSS
	to    netip.AddrPort
	ports []uint16
	err   error
}

// plan adds the port plans to the announcement. mark is the mark of the tunnel's datagrams. If
// the NIC's hash ignores ports, it adds a note with the command that changes that.
func (p *portPlanner) plan(r *result, configs map[string]spreader.Config, mark uint32, candidates spread.Ports) {
	for i, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
		to, peer := ingress(r.announcement.Endpoints, configs, family)
		if !peer.IsValid() {
			continue
		}
		rss, err := p.read(netip.Addr{}, peer, 0, mark)
		last := &p.cache[i]
		switch {
		case errors.Is(err, hostnet.ErrNoRSS):
			*last = cachedPlan{}
		case err != nil: // keep the last plan: the error may be temporary
		case last.to != to || !reflect.DeepEqual(last.rss, rss.RSS):
			*last = cachedPlan{rss: rss.RSS, to: to}
			last.ports, last.err = mesh.PlanFor(&rss.RSS, to, candidates)
		}
		p.logOnce(i, family, cmp.Or(err, last.err))
		if errors.Is(last.err, spread.ErrNotByPort) {
			r.notes = append(r.notes, last.err.Error())
		}
		if len(last.ports) > 0 {
			r.announcement.Plans = append(r.announcement.Plans, v1alpha1.Plan{IPFamily: family, Ports: toAPIPorts(last.ports)})
		}
	}
}

// logOnce logs why there is no new plan, unless that was the last reason.
func (p *portPlanner) logOnce(i int, family v1alpha1.IPFamily, why error) {
	text := ""
	if why != nil {
		text = why.Error()
	}
	if text != p.logged[i] && text != "" {
		p.log.Debug("computing a port plan failed, keeping the last plan: without a plan peers use the configured port range", "ip_family", family, "reason", text)
	}
	p.logged[i] = text
}

// ingress returns the node's endpoint of an IP family, and a peer behind the device that most peers of that family are behind.
// The peer is invalid if one plan does not suit: that is, if more than one in eight peers is behind another device. A minority
// is tolerated, since one node that publishes a wrong address must not prevent the plan.
func ingress(own []v1alpha1.Endpoint, configs map[string]spreader.Config, family v1alpha1.IPFamily) (to netip.AddrPort, peer netip.Addr) {
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
		first, n := lowestOf(cfg.PeerPortRanges, family)
		if all += n; n > most {
			peer, most = first, n
		}
	}
	const tolerated = 8 // one in eight peers behind another device
	if tolerated*(all-most) > all {
		peer = netip.Addr{}
	}
	return to, peer
}

// lowestOf returns the lowest of the addresses of an IP family, and their number.
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
