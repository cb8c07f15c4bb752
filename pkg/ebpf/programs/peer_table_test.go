// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// randomPeers returns peers at few addresses and ports, so that many conflict.
func randomPeers(r *rand.Rand, n int) (peers []Peer) {
	for range n {
		address := netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(12))})
		p := Peer{Tunnel: uint16(51820 + r.IntN(3)), Endpoint: netip.AddrPortFrom(address, uint16(1000+r.IntN(30)))}
		if r.IntN(3) > 0 {
			first := uint16(1000 + r.IntN(30))
			p.Gather = between(first, first+uint16(r.IntN(6)))
		}
		if r.IntN(2) > 0 {
			p.Lanes = ports(61000, uint16(61000+r.IntN(70)))
		}
		peers = append(peers, p)
	}
	return peers
}

// TestSetPeersMatchesOneByOne checks that conflicts within one call are found as those with the maps.
func TestSetPeersMatchesOneByOne(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3 {
		single, together := loadSpreadFor(t, SpreadOptions{}), loadSpreadFor(t, SpreadOptions{})
		for _, s := range []*Spread{single, together} {
			expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61063)}))
			expect.NoError(t, s.SetTunnel(Tunnel{Port: 51821}))
		}
		peers := randomPeers(r, 60)
		var good []Peer
		for i, p := range peers {
			err := single.SetPeer(p)
			if err == nil {
				good = append(good, p)
			}
			if i%20 != 19 && err == nil {
				continue
			}
			// The last one conflicts with peers of this call, or of earlier ones.
			if got := together.SetPeers(append(good, p)); fmt.Sprint(got) != fmt.Sprint(err) {
				t.Fatalf("%+v: together %v, one by one %v", p, got, err)
			}
			good = nil
		}
		tunnels, err := single.Tunnels()
		expect.NoError(t, err)
		want, err := single.Peers()
		expect.NoError(t, err)
		wantState(t, &together.State, tunnels, want)
		if a, b := entries(t, single.maps.Sources), entries(t, together.maps.Sources); a != b {
			t.Errorf("got %d sources, want %d", b, a)
		}
	}
}

func TestSetPeersRejectsConflictWithinOneCall(t *testing.T) {
	s := loadSpreadFor(t, SpreadOptions{})
	expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820}))
	first, last := Peer{Tunnel: 51820, Endpoint: endpoint("192.0.2.1:7")}, Peer{Tunnel: 51820, Endpoint: endpoint("192.0.2.2:7")}
	err := s.SetPeers([]Peer{first, {Tunnel: 51820, Endpoint: endpoint("192.0.2.1:51821"), Gather: between(1, 10)}, last})
	if err == nil || !strings.Contains(err.Error(), "contain the endpoint port 7 of another peer") {
		t.Error(err)
	}
	wantState(t, &s.State, []Tunnel{{Port: 51820}}, []Peer{first, last})
}

// manyPeers returns the peers of a large cluster.
func manyPeers(n int) (peers []Peer) {
	for i := range n {
		address := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		peers = append(peers, Peer{
			Tunnel: 51820, Endpoint: netip.AddrPortFrom(address, 51820), Lanes: ports(61000, 61063), Gather: spread.DefaultPorts,
		})
	}
	return peers
}

func TestPeersListsSeveralBatches(t *testing.T) {
	s := loadSpreadFor(t, SpreadOptions{})
	tunnel := Tunnel{Port: 51820, Lanes: ports(61000, 61999)}
	expect.NoError(t, s.SetTunnel(tunnel))
	peers := manyPeers(2000)
	expect.NoError(t, s.SetPeers(peers))
	wantState(t, &s.State, []Tunnel{tunnel}, peers)
}

// BenchmarkPeers uses the peers of a cluster of 5,000 nodes.
func BenchmarkPeers(b *testing.B) {
	s := loadSpreadFor(b, SpreadOptions{})
	expect.NoError(b, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999)}))
	peers := manyPeers(5000)
	b.Run("set", func(b *testing.B) {
		for b.Loop() {
			expect.NoError(b, s.SetPeers(peers))
		}
	})
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if all, err := s.Peers(); err != nil || len(all) != len(peers) {
				b.Fatal(len(all), err)
			}
		}
	})
}
