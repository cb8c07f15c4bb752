// SPDX-License-Identifier: Apache-2.0

package receive

import (
	mathrand "math/rand/v2"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// arrivals delivers long and short trains of both peers, and returns the number of packets.
func (r *rig) arrivals(t *lanetest.Turmoil, trains, round int, ours [2][]*session.Keypair) (packets int) {
	var flows [2]flow.Flow
	for i := range flows {
		flows[i] = flow.Flow{ID: uint32(2*round + i), Ends: flow.Ends{Src: netip.AddrPortFrom(t.Routes[i].Addr(), 1), Dst: lanetest.Out4.Src}}
	}
	for k := range trains {
		i, n := t.Random.IntN(2), 1+t.Random.IntN(3)
		if k < lane.MaxJobs || t.Random.IntN(3) > 0 {
			n = 44
		}
		from := lanetest.There
		from.Dst = netip.AddrPortFrom(from.Dst.Addr(), uint16(1+i))
		t.Peers[i].Endpoint.Store(&from)
		t.Remote = t.Theirs[ours[i][0].Remote()]
		run, size := t.Seal(lanetest.PacketsOf(t.TB, flows[i].Train(n, 1380))...)
		r.arriveFrom(k, from, run, size)
		packets += n
	}
	return packets
}

// TestReceiveKeepsOrderAndCountsUnderStress wipes and removes sessions and changes routes while workers open
// trains. Short datagrams may pass long ones.
func TestReceiveKeepsOrderAndCountsUnderStress(t *testing.T) {
	r := newRigWithWorkers(t, lanetest.ManyWorkers())
	m := lanetest.NewTurmoil(r.Rig, 12)
	packets := 0
	for round := 0; lanetest.GoesOn(round, 60, m.AllDrops() > 0); round++ {
		both := m.Sessions(1)
		sessions := both[0]
		m.Shared.Routes.Update(func(e *peer.Editor[*lane.Peer]) { e.Add(m.Routes[0], m.Peers[0]) })
		trains := 2*lane.MaxJobs + m.Random.IntN(2*lane.MaxJobs)
		packets += r.arrivals(m, trains, round, both)
		random, changes := mathrand.New(mathrand.NewPCG(uint64(round), 4)), 1+m.Random.IntN(10+10*min(round, 60))
		end := lanetest.Meanwhile(func() {
			if changes--; changes == 0 {
				s, _ := m.Shared.Sessions.Lookup(sessions[0].Local())
				m.Shared.Sessions.Remove(sessions[0].Local())
				s.Keys.Store(nil)
				sessions[0].Wipe()
			} else if changes > 0 && random.IntN(4) == 0 {
				m.Disturb(mathrand.New(mathrand.NewPCG(uint64(changes), 6)), 0, sessions)
			}
		})
		r.rx.batch(trains)
		end()
		for _, e := range m.Delivered() {
			if err := m.Order.Take(e); err != nil {
				t.Error(err)
			}
		}
	}
	delivered := int(m.Lane.Snapshot().RxPackets)
	if got := delivered + int(m.AllDrops()); got != packets || delivered == 0 || delivered == packets {
		t.Errorf("%d packets delivered, %d dropped, of %d", delivered, m.AllDrops(), packets)
	}
	if n := int(m.Order.Total()); n != delivered {
		t.Errorf("%d packets of %d have reached the TUN", n, delivered)
	}
	lanetest.Offered(t, m.Lane.OpenJobs.Stats())
}
