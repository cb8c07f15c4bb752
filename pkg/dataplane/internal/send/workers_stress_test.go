// SPDX-License-Identifier: Apache-2.0

package send

import (
	mathrand "math/rand/v2"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// TestNoNonceIsReusedUnderStress wipes and replaces sessions, changes routes and the port, lets peers roam and sends fail, and
// sends on the slow path under the same keys, while workers seal. Each packet leaves in order or is counted as dropped.
func TestNoNonceIsReusedUnderStress(t *testing.T) {
	r := newRigWithWorkers(t, lanetest.ManyWorkers())
	m, slowly := lanetest.NewTurmoil(r.Rig, 11), r.newSlow(nil)
	slowly.Lane.Conn.Store(r.Lane.Conn.Load())
	flows := [2]flow.Flow{
		{ID: 1, Ends: flow.Ends{Src: lanetest.Out4.Src, Dst: netip.AddrPortFrom(m.Routes[0].Addr(), 1)}},
		{ID: 2, Ends: flow.Ends{Src: lanetest.Out4.Src, Dst: netip.AddrPortFrom(m.Routes[1].Addr(), 1)}},
	}
	packets := 0
	disturbed := func() bool { return m.Left > 0 && m.Drops(drop.TXNoSession) > 0 && m.Drops(drop.TXSendError) > 0 }
	for round := 0; lanetest.GoesOn(round, 40, disturbed()); round++ {
		sessions := m.Sessions(3)
		var elements [][]byte
		for i := range flows {
			m.Peers[i].Current.Store(sessions[i][0])
			m.Shared.Routes.Update(func(e *peer.Editor[*lane.Peer]) { e.Add(m.Routes[i], m.Peers[i]) })
			elements = append(elements, lanetest.RandomElements(m.Random, &flows[i])...)
		}
		random := mathrand.New(mathrand.NewPCG(uint64(round), 3))
		end := lanetest.Meanwhile(func() { i := random.IntN(2); m.Disturb(random, i, sessions[i]) })
		slow := flow.Flow{ID: uint32(100 + round), Ends: lanetest.Out4}
		endSlow := lanetest.Meanwhile(func() {
			if slow.Sent() == 90 { // however seldom this goroutine runs, the slow path meets a session that was wiped
				sessions[0][0].Wipe()
			}
			if slow.Sent() < 100 {
				slowly.Transmit(m.Peers[0], sessions[0][0], slow.Train(3, 1000))
			}
		})
		r.carry(elements...)
		end()
		endSlow()
		packets += len(lanetest.PacketsOf(t, elements...)) + int(slow.Sent())
	}
	staged := int(m.Staged[0].Packets.Load() + m.Staged[1].Packets.Load())
	if got := m.Left + staged + int(m.AllDrops()); got != packets {
		t.Errorf("%d packets left, %d were staged, %d dropped: %d of %d", m.Left, staged, m.AllDrops(), got, packets)
	}
	if !disturbed() {
		t.Errorf("%d left, %+v: nothing was disturbed, or all", m.Left, m.Lane.Snapshot())
	}
	lanetest.Offered(t, m.Lane.SealJobs.Stats())
}
