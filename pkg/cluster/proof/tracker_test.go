// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

var began = time.Unix(1_700_000_000, 0)

// world is a node with peers, of which each may be silent, or be reached beside its routes.
type world struct {
	t       *testing.T
	tracker Tracker
	now     time.Time
	all     []Peer
	silent  map[noise.PublicKey]bool // answers nothing
	routes  map[noise.PublicKey]bool // false: no datagram is answered
	absent  bool                     // the engine
	reports map[noise.PublicKey]config.PeerProbe
	pending map[noise.PublicKey]bool // an answer to a probe comes with the next report
	probes  int
	asks    int

	permissive bool // routes follow LeadsInto, else all lead into the tunnel
}

func newWorld(t *testing.T, peers int) *world {
	w := &world{
		t: t, now: began, silent: map[noise.PublicKey]bool{}, routes: map[noise.PublicKey]bool{},
		reports: map[noise.PublicKey]config.PeerProbe{}, pending: map[noise.PublicKey]bool{},
	}
	for i := range peers {
		key := keyOf(i)
		w.all = append(w.all, Peer{key, netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), true})
		w.routes[key] = true
	}
	w.tracker.SetPeers(w.now, w.all)
	return w
}

func keyOf(i int) (key noise.PublicKey) {
	binary.BigEndian.PutUint32(key[:], uint32(i+1))
	return key
}

// run steps each second.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Second) {
		w.step()
	}
}

func (w *world) step() {
	w.t.Helper()
	if w.permissive {
		w.follow()
	}
	a := w.tracker.Step(w.now)
	w.probes += len(a.Probe)
	w.asks += len(a.Ask)
	if len(a.Probe) > perSecond || len(a.Ask) > perSecond {
		w.t.Fatalf("got %d probes and %d datagrams in one second", len(a.Probe), len(a.Ask))
	}
	if !w.absent {
		w.tracker.Probed(w.now, w.probe(a.Probe))
	}
	for _, p := range a.Ask {
		if !w.silent[p.Key] && w.routes[p.Key] && !w.absent {
			w.tracker.Answered(w.now.Add(time.Millisecond), p.Key)
		}
	}
}

// newPermissive returns a world in which no routes lead into the tunnel yet.
func newPermissive(t *testing.T, peers int) *world {
	w := newWorld(t, peers)
	w.permissive, w.tracker = true, Tracker{}
	for i := range w.all {
		w.all[i].Routed = false
	}
	w.tracker.SetPeers(w.now, w.all)
	return w
}

// follow is the reconciler.
func (w *world) follow() {
	if !w.tracker.RoutesDiffer(w.now) {
		return
	}
	for i := range w.all {
		w.all[i].Routed = w.tracker.LeadsInto(w.now, w.all[i].Key)
	}
	w.tracker.SetPeers(w.now, w.all)
}

// probe is the engine: a report has the answers to earlier probes.
func (w *world) probe(keys []noise.PublicKey) map[noise.PublicKey]config.PeerProbe {
	out := map[noise.PublicKey]config.PeerProbe{}
	for _, key := range keys {
		r := w.reports[key]
		r.Up, r.Sent = true, r.Sent+1
		if w.pending[key] {
			r.Session, r.Echoes, r.Answered = true, true, r.Answered+1
		}
		w.pending[key] = !w.silent[key]
		w.reports[key], out[key] = r, r
	}
	return out
}

func (w *world) expect(i int, want State) {
	w.t.Helper()
	got := Pending
	if p := w.tracker.peers[keyOf(i)]; p != nil {
		got = p.state
	}
	if got != want {
		w.t.Errorf("peer %d after %v: got %v, want %v", i, w.now.Sub(began), got, want)
	}
}

func TestAnsweredDatagramProvesPeer(t *testing.T) {
	w := newWorld(t, 2)
	w.expect(0, Pending)
	w.step()
	w.expect(0, Proven)
	if w.probes != 2 || w.asks != 2 {
		t.Errorf("got %d probes and %d datagrams, want 2 each", w.probes, w.asks)
	}
	w.run(10 * time.Minute)
	if got := w.tracker.Summary(w.now); got.Proven != 2 || got.Judged != 2 || w.asks > 2*(11+12) { // the latter because the peers send none
		t.Errorf("got %+v, %d datagrams", got, w.asks)
	}
}

func TestPeerWithoutRoutesIsReachableOnly(t *testing.T) {
	w := newWorld(t, 1)
	w.run(time.Minute)
	w.expect(0, Proven)
	w.routes[keyOf(0)] = false
	w.run(minTurn + attempts*answerTime)
	w.expect(0, Reachable)
	if got := w.tracker.Summary(w.now); got.Unproven != 1 {
		t.Errorf("got %+v, want one unproven", got)
	}
	w.routes[keyOf(0)] = true
	w.run(minTurn + answerTime)
	w.expect(0, Proven)
}

func TestSilentPeerIsLostWithinAMinute(t *testing.T) {
	w := newPermissive(t, 1)
	w.silent[keyOf(0)] = true
	for range 90 {
		w.run(time.Second)
		if w.tracker.LeadsInto(w.now, keyOf(0)) {
			t.Fatal("routes to a peer that never answered lead into the tunnel")
		}
		if w.now.Sub(began) == pendingTime {
			w.expect(0, Pending)
		}
		if w.now.Sub(began) == time.Minute {
			w.expect(0, Lost)
		}
	}
	if w.asks != 0 {
		t.Errorf("got %d datagrams, which leave in the clear", w.asks)
	}
	w.silent[keyOf(0)] = false
	w.run(minTurn + 2*answerTime)
	w.expect(0, Proven)
}

// TestRoutesOfEarlierAgentStayUntilJudged: an agent that starts has seen nothing yet.
func TestRoutesOfEarlierAgentStayUntilJudged(t *testing.T) {
	w := newWorld(t, 2)
	w.permissive, w.silent[keyOf(1)] = true, true
	for range 60 {
		w.run(time.Second)
		if !w.tracker.LeadsInto(w.now, keyOf(0)) || !w.tracker.LeadsInto(w.now, keyOf(1)) {
			t.Fatalf("the routes are withdrawn after %v", w.now.Sub(began))
		}
	}
	w.run(2 * minTurn)
	if !w.tracker.LeadsInto(w.now, keyOf(0)) || w.tracker.LeadsInto(w.now, keyOf(1)) {
		t.Error("the routes should lead to the peer that answers only")
	}
}

func TestPartitionAndHealingAreSeenSoon(t *testing.T) {
	for _, peers := range []int{3, 600, 5000} {
		w := newWorld(t, peers)
		w.run(time.Duration(peers/perSecond+70) * time.Second)
		facts := func() Condition { return peersReachable(&Facts{Peers: w.tracker.Summary(w.now)}) }
		if got := facts(); got.Status != True {
			t.Fatalf("%d peers: got %+v", peers, got)
		}
		for i := range peers {
			w.silent[keyOf(i)] = true
		}
		w.run(70 * time.Second)
		if got := facts(); got.Status != False {
			t.Errorf("%d peers, after a minute of silence: got %+v", peers, got)
		}
		clear(w.silent)
		w.run(70 * time.Second)
		if got := facts(); got.Status != True {
			t.Errorf("%d peers, a minute after the silence: got %+v", peers, got)
		}
	}
}

func TestTurnOfManyPeersIsLonger(t *testing.T) {
	w := newWorld(t, 1200)
	w.run(120 * time.Second)
	if got := w.tracker.Summary(w.now); got.Proven != 1200 {
		t.Errorf("got %+v after 120 s, want all proven", got)
	}
	w.run(120 * time.Second)
	if w.probes > 240*perSecond {
		t.Errorf("got %d probes in 240 s", w.probes)
	}
}

// TestPeerWithTrafficIsCheckedAtOnce has a path that dies between two turns.
func TestPeerWithTrafficIsCheckedAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	w.run(15 * time.Second)
	w.tracker.Counted(w.now, []config.PeerStatus{{PublicKey: keyOf(0), TxBytes: 100, RxBytes: 100}})
	w.silent[keyOf(0)] = true
	w.run(10 * time.Second)
	w.tracker.Counted(w.now, []config.PeerStatus{{PublicKey: keyOf(0), TxBytes: 200, RxBytes: 150}}) // of before
	w.expect(0, Proven)
	w.run(10 * time.Second)
	w.tracker.Counted(w.now, []config.PeerStatus{{PublicKey: keyOf(0), TxBytes: 300, RxBytes: 150}})
	w.run(attempts*answerTime + 2*time.Second)
	w.expect(0, Lost)
	if got := w.tracker.LeadsInto(w.now, keyOf(0)); !got {
		t.Error("the route to a lost peer should stay for a minute")
	}
	w.run(withdrawAfter)
	if w.tracker.LeadsInto(w.now, keyOf(0)) {
		t.Error("the route to a lost peer should be withdrawn")
	}
}

// TestBytesAloneProveNothing has a peer that sends and does not receive.
func TestBytesAloneProveNothing(t *testing.T) {
	w := newWorld(t, 1)
	w.silent[keyOf(0)] = true
	for i := range uint64(80) {
		w.tracker.Counted(w.now, []config.PeerStatus{{PublicKey: keyOf(0), TxBytes: 148 * i, RxBytes: 148 * i}})
		w.run(time.Second)
	}
	w.expect(0, Lost)
	w.tracker.Counted(w.now, []config.PeerStatus{{PublicKey: keyOf(0), LastHandshake: w.now}})
	w.expect(0, Reachable)
}

func TestAbsentEngineMakesNoPeerLost(t *testing.T) {
	w := newWorld(t, 3)
	w.run(time.Minute)
	w.absent = true
	w.run(5 * time.Minute)
	w.expect(0, Proven)
	if got := w.tracker.Summary(w.now); got.Judged != 0 {
		t.Errorf("got %+v, want none judged", got)
	}
}

func TestPeerWithoutAddressIsReachable(t *testing.T) {
	w := newWorld(t, 1)
	w.all[0].Address = netip.Addr{}
	w.tracker.SetPeers(w.now, w.all)
	w.run(10 * time.Second)
	w.expect(0, Reachable)
	if got := w.tracker.Summary(w.now); got.Unprovable != 1 || got.Unproven != 0 || w.asks != 0 || w.probes != 2 {
		t.Errorf("got %+v, %d datagrams, %d probes", got, w.asks, w.probes)
	}
}

func TestChangedAddressWithdrawsProof(t *testing.T) {
	w := newWorld(t, 2)
	w.run(10 * time.Second)
	w.all[0].Address = netip.MustParseAddr("10.244.9.9")
	w.tracker.SetPeers(w.now, w.all[:1])
	w.expect(0, Reachable)
	w.expect(1, Pending) // it is gone
	w.step()
	w.expect(0, Proven)
}

func TestReflectedDatagramsMakeProofMutual(t *testing.T) {
	w := newWorld(t, 1)
	w.run(70 * time.Second)
	if w.asks < 6 {
		t.Errorf("got %d datagrams to a new peer that has sent none", w.asks)
	}
	if got := w.tracker.Summary(w.now); got.Mutual != 0 {
		t.Errorf("got %+v before the peer asked", got)
	}
	r := w.reports[keyOf(0)]
	r.Reflected = 5
	w.reports[keyOf(0)] = r
	w.run(70 * time.Second)
	if got := w.tracker.Summary(w.now); got.Mutual != 1 {
		t.Errorf("got %+v, want one mutual", got)
	}
	w.run(4 * minTurn)
	if got := w.tracker.Summary(w.now); got.Mutual != 0 {
		t.Errorf("got %+v long after the peer's last datagram", got)
	}
}

func TestOnlyPeerThatDiesCutsOffNobody(t *testing.T) {
	for _, answersFirst := range []bool{true, false} {
		w := newWorld(t, 1)
		w.silent[keyOf(0)] = !answersFirst
		w.run(time.Minute)
		w.silent[keyOf(0)] = true
		w.run(2 * time.Minute)
		w.expect(0, Lost)
		w.cutOff(!answersFirst)
	}
}

// TestOnlyPeerThatDiedBeforeCutsOffNobody: the engine runs longer than the agent, and had a session with the peer.
func TestOnlyPeerThatDiedBeforeCutsOffNobody(t *testing.T) {
	w := newWorld(t, 1)
	w.silent[keyOf(0)] = true
	w.tracker.Counted(w.now, []config.PeerStatus{{PublicKey: keyOf(0), LastHandshake: w.now.Add(-time.Hour)}})
	for range 180 {
		w.run(time.Second)
		w.cutOff(false)
	}
	w.expect(0, Lost)
}

// TestStartNeedsAnswersOfHalfThePeers: an agent that starts has no verdict on silent peers for half a minute, and is not ready meanwhile.
func TestStartNeedsAnswersOfHalfThePeers(t *testing.T) {
	for _, tt := range []struct{ peers, silent int }{{2, 1}, {4, 2}, {3, 2}, {1, 1}, {999, 998}, {999, 300}, {999, 700}} {
		w := newWorld(t, tt.peers)
		w.cutOff(true)
		for i := range tt.silent { // spread over the order in which they are asked
			w.silent[keyOf(i*tt.peers/tt.silent)] = true
		}
		w.run(3 * time.Second)
		for range 120 {
			w.cutOff(2*tt.silent > tt.peers)
			w.run(time.Second)
		}
	}
}

// TestStartAsksAgainAfterAChange: peers that answered before an agent changed the host say nothing of the change, and their turn comes in a minute.
func TestStartAsksAgainAfterAChange(t *testing.T) {
	for _, peers := range []int{2, 4, 999} {
		for _, c := range []struct {
			change time.Duration   // after the start
			breaks []time.Duration // after the change; none: it does no harm
			unseen bool
		}{
			{change: 0},
			{change: 4 * time.Second},
			{change: 4 * time.Second, breaks: []time.Duration{0, 3 * time.Second, settleTime - time.Second}},
			{change: startTime, unseen: true}, // a node that joined changes agents that run
		} {
			for _, after := range append(c.breaks, -1) {
				w := newWorld(t, peers)
				if c.change > 0 {
					w.run(c.change)
					w.cutOff(false)
				}
				w.tracker.Changed(w.now)
				for second := range 25 {
					since := time.Duration(second) * time.Second
					if since == after {
						for _, p := range w.all {
							w.silent[p.Key] = true
						}
					}
					w.cutOff(!c.unseen && (since <= settleTime || after >= 0))
					w.run(time.Second)
				}
			}
		}
	}
}

// TestPeerThatJoinsCutsOffNobody: it may not know this node yet.
func TestPeerThatJoinsCutsOffNobody(t *testing.T) {
	for _, before := range []int{0, 2} {
		w := newWorld(t, 10)
		w.tracker = Tracker{}
		w.tracker.SetPeers(w.now, w.all[:before])
		w.run(2 * time.Second)
		w.tracker.SetPeers(w.now, w.all)
		for i := before; i < 10; i++ {
			w.silent[keyOf(i)] = true
		}
		for range int(pendingTime / time.Second) {
			w.cutOff(false)
			w.run(time.Second)
		}
		clear(w.silent)
		w.run(3 * retryTime)
		w.cutOff(false)
	}
}

func (w *world) cutOff(want bool) {
	w.t.Helper()
	if s := w.tracker.Summary(w.now); (s.CutOff() != "") != want {
		w.t.Fatalf("%d peers after %v: got %q, want cut off %v", len(w.all), w.now.Sub(began), s.CutOff(), want)
	}
}

// TestFirstOfManyPeersIsNoOnlyPeer: the others have not been judged yet.
func TestFirstOfManyPeersIsNoOnlyPeer(t *testing.T) {
	for peers, want := range map[int]bool{1: true, 999: false} {
		if s := (Summary{Peers: peers, Judged: 1, JudgedLost: 1}); (s.CutOff() == "") != want {
			t.Errorf("%d peers: got %q", peers, s.CutOff())
		}
	}
}
