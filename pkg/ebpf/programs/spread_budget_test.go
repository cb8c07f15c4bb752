// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// budgetRig is a Spread with an open peer at them6, whose clock a test sets. Each flow has a lane of its own: the most expensive case.
type budgetRig struct {
	*Spread
	t       *testing.T
	at      Peer
	flows   []uint32 // flow labels, one for each lane
	blocked int      // this lane's probes are lost; -1: none
	delay   int      // answers arrive with this many further messages
	silent  bool
	probes  int

	clock   time.Duration // of the test, which passes with messages
	probed  map[int]time.Duration
	answers []budgetAnswer // on their way, in order
	sent    int            // messages
}

type budgetAnswer struct {
	lane  int // listenLane: the listen port
	round uint32
	at    int // arrives before this message
}

func newBudgetRig(t *testing.T, flows int) *budgetRig {
	t.Helper()
	r := &budgetRig{Spread: newSpread(t, SpreadOptions{L2: true}), t: t, blocked: -1, probed: map[int]time.Duration{}}
	r.at = Peer{Tunnel: 51820, Endpoint: endpoint(them6), Lanes: ports(61000, 61000+uint16(flows)-1)}
	expect.NoError(t, r.SetGap(time.Hour))
	r.setOpenPeer(t, r.at)
	lanes := map[uint16]bool{}
	for label := uint32(1); len(r.flows) < flows; label++ {
		if port := r.sendFrom(label); !lanes[port] {
			lanes[port], r.flows = true, append(r.flows, label)
		}
	}
	r.change(func(value *spreadPeer) {
		value.RoundAt = now(t)
		for i := range value.Lane {
			value.Lane[i].Messages = 0
		}
	})
	return r
}

func (r *budgetRig) change(f func(value *spreadPeer)) {
	r.t.Helper()
	r.changePeer(r.t, r.at.Tunnel, r.at.Endpoint, f)
}

// sendFrom sends a message with a flow label, and returns its source port.
func (r *budgetRig) sendFrom(label uint32) uint16 {
	r.t.Helper()
	in := data(us6, them6).bytes()
	setLabel(in, label)
	out, _, refused := runTC(r.t, r.Egress(), in, skb{})
	if refused {
		r.t.Skip("the kernel refuses the packet")
	}
	return sourcePort(out)
}

func (value *spreadPeer) port(lane int) *spreadLane {
	if lane == listenLane {
		return &value.Listen
	}
	return &value.Lane[lane]
}

// send sends a message of a flow, some time after the last message. It counts the probes that leave with it, and has the peer answer them.
func (r *budgetRig) send(flow int, later time.Duration) (port uint16) {
	r.t.Helper()
	r.clock += later
	r.sent++
	var before spreadPeer
	r.change(func(value *spreadPeer) {
		value.RoundAt -= uint64(later)
		for len(r.answers) > 0 && r.answers[0].at <= r.sent {
			a := r.answers[0]
			r.answers = r.answers[1:]
			if l := value.port(a.lane); l.Round-a.round < 32 {
				l.Answered |= 1 << (l.Round - a.round)
				l.Lost = 0
			}
		}
		for lane := range listenLane + 1 {
			value.port(lane).Probed = uint16((now(r.t) - uint64(r.clock-r.probed[lane])) >> 33)
		}
		before = *value
	})
	port = r.sendFrom(r.flows[flow])
	key, after := peerKey(r.at.Tunnel, r.at.Endpoint), spreadPeer{}
	expect.NoError(r.t, r.maps.Peers.Lookup(&key, &after))
	for lane := range listenLane + 1 {
		l := after.port(lane)
		if l.Round == before.port(lane).Round {
			continue
		}
		r.probes++
		r.probed[lane] = r.clock
		if lane != r.blocked && !r.silent {
			r.answers = append(r.answers, budgetAnswer{lane, l.Round, r.sent + 1 + r.delay})
		}
	}
	return port
}

// TestProbesCostFewPackets: they are at most 2 % of a peer's messages and one a minute. The answers are as many.
func TestProbesCostFewPackets(t *testing.T) {
	for name, c := range map[string]struct {
		flows    int
		each     time.Duration // between two messages of a flow
		messages int
	}{
		"a message an hour":              {1, time.Hour, 30},
		"a message in three minutes":     {1, 3 * time.Minute, 40},
		"a message a minute":             {1, time.Minute, 180},
		"64 flows of a message a minute": {64, time.Minute, 64 * 30},
		"16 flows of a message a second": {16, time.Second, 16 * 180},
		"a busy flow":                    {1, time.Millisecond, 2000},
		"16 busy flows":                  {16, 16 * time.Millisecond, 16 * 180},
	} {
		t.Run(name, func(t *testing.T) {
			r := newBudgetRig(t, c.flows)
			had := map[uint16]bool{}
			for n := range c.messages {
				had[r.send(n%c.flows, c.each/time.Duration(c.flows))] = true
			}
			took := time.Duration(c.messages) * c.each / time.Duration(c.flows)
			if most := c.messages/50 + int(took/time.Minute); r.probes > most {
				t.Errorf("got %d probes for %d messages in %v, want at most %d", r.probes, c.messages, took, most)
			}
			if r.probes == 0 || len(had) != c.flows || had[51820] {
				t.Errorf("got %d probes, source ports %v, want some probes, and a lane port for each flow", r.probes, had)
			}
		})
	}
}

// TestLostLaneIsLeftInTime has a path that drops the messages of one lane.
func TestLostLaneIsLeftInTime(t *testing.T) {
	for name, c := range map[string]struct {
		flows int
		each  time.Duration
		most  int // messages of the flow until it leaves from the listen port
	}{
		"a message a minute":             {1, time.Minute, 10},
		"64 flows of a message a minute": {64, time.Minute, 200},
		"16 flows of a message a second": {16, time.Second, 160},
		"a flow of 100 a second":         {1, 10 * time.Millisecond, 300},
		"16 flows of 100 a second":       {16, 10 * time.Millisecond, 300},
	} {
		t.Run(name, func(t *testing.T) {
			r := newBudgetRig(t, c.flows)
			used, lane := networkOrder(r.send(0, c.each)), 0
			r.change(func(value *spreadPeer) {
				lane = slices.IndexFunc(value.Lane[:], func(l spreadLane) bool { return l.Port.Raw == used })
			})
			for round := range 2 { // no credit of the start is left for the second one
				r.blocked = lane
				lost := 0
				for n := 0; ; n++ {
					if port := r.send(n%c.flows, c.each/time.Duration(c.flows)); n%c.flows != 0 {
						continue
					} else if port == 51820 {
						break
					}
					if lost++; lost > c.most {
						t.Fatalf("time %d: %d messages left from the lane", round, lost)
					}
				}
				r.blocked = -1
				r.change(func(value *spreadPeer) {
					value.Lane[lane] = spreadLane{Port: value.Lane[lane].Port, Proof: value.Proof, Round: value.Round}
				})
			}
		})
	}
}

// TestQuietLaneBesideBusyIsLeft has a busy neighbour: 40 rounds, all answered, between two messages of the lane.
func TestQuietLaneBesideBusyIsLeft(t *testing.T) {
	r := newBudgetRig(t, 1)
	used := networkOrder(r.send(0, time.Second))
	r.change(func(value *spreadPeer) {
		r.blocked = slices.IndexFunc(value.Lane[:], func(l spreadLane) bool { return l.Port.Raw == used })
	})
	r.answers = nil
	for n := 0; ; n++ {
		r.change(func(value *spreadPeer) {
			value.Round += 40
			value.RoundAt, value.Credit = now(t), probeBurst
			value.Listen = spreadLane{Port: value.Listen.Port, Round: value.Round, Sent: ^uint32(0), Answered: ^uint32(0)}
		})
		r.probed[listenLane] = r.clock
		if r.send(0, 10*time.Second) == 51820 {
			break
		}
		if n > 20 {
			t.Fatalf("%d messages, one in 10 s, left from the lane", n)
		}
	}
}

// TestDistantPeerKeepsCredit: while an answer is on its way, further probes would find out nothing.
func TestDistantPeerKeepsCredit(t *testing.T) {
	r := newBudgetRig(t, 2)
	r.delay = 7
	for n := range 3000 {
		if port := r.send(n%2, 100*time.Millisecond); port == 51820 {
			t.Fatalf("message %d left from the listen port", n)
		}
	}
	r.change(func(value *spreadPeer) {
		if value.Credit < probeBurst-1 {
			t.Errorf("got a credit of %d", value.Credit)
		}
	})
}

// TestSilentPeerCostsFewProbes: rounds become twice as long each time. Losses of the peer alone leave credit to find out that it is silent.
func TestSilentPeerCostsFewProbes(t *testing.T) {
	r := newBudgetRig(t, 1)
	for range 1000 {
		r.send(0, time.Second)
	}
	r.silent, r.probes = true, 0
	var found time.Duration
	began := r.clock
	for range 1200 {
		if r.send(0, time.Second) == 51820 && found == 0 {
			found = r.clock - began
		}
	}
	if found == 0 || found > 5*time.Minute || r.probes > 20 {
		t.Errorf("silent after %v, %d probes in 20 minutes", found, r.probes)
	}
}

// TestAnswerForgetsLosses: only losses in a row close a lane.
func TestAnswerForgetsLosses(t *testing.T) {
	e := newProved(t)
	e.change(func(value *spreadPeer) { value.Lane[0].Lost = 2 })
	e.step()
	e.answer(0)
	if got := e.state().Lane[0].Lost; got != 0 {
		t.Errorf("got %d", got)
	}
}
