// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func TestSpreadPlanIsMatchedWithTunnelPeers(t *testing.T) {
	tunnel := func(port uint16, peers ...string) spreader.Tunnel {
		tunnel := spreader.Tunnel{Name: "wg0", Port: port}
		for _, p := range peers {
			e, _ := netip.ParseAddrPort(p)
			tunnel.Peers = append(tunnel.Peers, spreader.TunnelPeer{Endpoint: e})
		}
		return tunnel
	}
	for _, c := range []struct {
		name     string
		tunnels  []spreader.Tunnel
		to       int
		problems int
		notes    int
		wait     time.Duration
	}{
		{"all are peers", []spreader.Tunnel{tunnel(51820, "192.0.2.2:51820", "192.0.2.3:61007")}, 2, 0, 0, 0},
		{"one peer has another address", []spreader.Tunnel{tunnel(51820, "192.0.2.2:51820", "198.51.100.3:51820")}, 1, 1, 0, unmatchedGrace},
		{"all peers have other addresses", []spreader.Tunnel{tunnel(51820, "198.51.100.2:51820", "198.51.100.3:51820")}, 0, 0, 1, unmatchedGrace},
		{"one has no endpoint yet", []spreader.Tunnel{tunnel(51820, "192.0.2.2:51820", "")}, 1, 0, 0, unmatchedGrace},
		{"one has no endpoint, one another address", []spreader.Tunnel{tunnel(51820, "198.51.100.2:51820", "")}, 0, 0, 1, unmatchedGrace},
		{"no peer has an endpoint yet", []spreader.Tunnel{tunnel(51820, "", "")}, 2, 0, 0, 0},
		{"another tunnel", []spreader.Tunnel{tunnel(1, "198.51.100.2:51820")}, 2, 0, 0, 0},
		{"unreadable tunnel", nil, 2, 0, 0, 0},
	} {
		var nodes []mesh.Node
		for _, text := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
			a := netip.MustParseAddr(text)
			nodes = append(nodes, mesh.Node{Name: text, Addrs: []netip.Addr{a}, Agent: &mesh.Agent{
				Mode: mesh.ModeSpread, Gathers: true, Endpoints: []netip.AddrPort{netip.AddrPortFrom(a, 51820)},
			}})
		}
		synctest.Test(t, func(t *testing.T) {
			s := newSpreadReconciler(Config{Ports: spread.DefaultPorts}, func() {})
			s.port = 51820
			for _, long := range []bool{false, true} {
				plan, r := mesh.Spread("192.0.2.1", nodes, true), result{}
				s.matchTunnel(&r, &plan, c.tunnels)
				problems, notes := c.problems, c.notes
				if !long { // within the grace period, nothing is reported
					problems, notes = 0, 0
				}
				if plan.SpreadsTo() != c.to || len(plan.Problems) != problems || len(r.notes) != notes || r.requeueAfter != c.wait || len(plan.Peers) != 2 {
					t.Errorf("%s: got %d, %+v, %+v, want %d, length %d", c.name, plan.SpreadsTo(), plan.Problems, r, c.to, problems)
				}
				time.Sleep(unmatchedGrace) // fake clock
			}
		})
	}
}

func TestLastSpreadPortIsReadFromStatus(t *testing.T) {
	endpoints := []v1alpha1.Endpoint{"192.0.2.1:51871", "[2001:db8::1]:51871"}
	for _, c := range []struct {
		st   v1alpha1.AnnouncementSpec
		want uint16
	}{
		{v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeSpread, Endpoints: endpoints}, 51871},
		{v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeSpread, Endpoints: slices.Clone(endpoints)[1:]}, 51871},
		{v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeMesh, Endpoints: endpoints}, 0},
		{v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeSpread}, 0},
		{v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeSpread, Endpoints: []v1alpha1.Endpoint{"nonsense"}}, 0},
	} {
		if got := lastSpreadPort(&c.st); got != c.want {
			t.Errorf("%+v: got %d, want %d", c.st, got, c.want)
		}
	}
}
