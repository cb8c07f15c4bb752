// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

const (
	// perSecond bounds the peers that are asked per second, each with one probe and one datagram.
	perSecond = 10
	// minTurn is the least time between two checks of a peer. With more than 600 peers,
	// perSecond makes it longer.
	minTurn = time.Minute
	// attempts is how often a check asks a peer, and answerTime the time to wait for answers. The
	// engine reports the answer to a probe at the next one.
	attempts   = 4
	answerTime = 2 * time.Second
	// pendingTime is the time in which a new peer may be silent, because it starts, or does not
	// have this node's key yet.
	pendingTime = 30 * time.Second
	// retryTime is the time to the next check of a peer that may be silent, or after a check
	// without the engine.
	retryTime = 10 * time.Second
	// mutualTime is the time in which a new peer is asked again after retryTime, until its own
	// datagrams arrive. Only a question shows that.
	mutualTime = 2 * minTurn
	// verdictTime is how long an outcome counts for Summary.Judged: a turn and a check.
	verdictTime = minTurn + 15*time.Second
	// startTime is the time after the first plan in which Changed has an effect. settleTime is the
	// time from a change until peers are asked again: its consequences may come late.
	startTime  = 30 * time.Second
	settleTime = 5 * time.Second
	// withdrawAfter is the time after which no route leads to a lost peer, in the permissive state.
	withdrawAfter = time.Minute
)

// Peer is another node.
type Peer struct {
	Key noise.PublicKey
	// Address of its tunnel, to which datagrams are sent. Without one, the routes to the peer
	// cannot be proved.
	Address netip.Addr
	// Routed reports that routes to it lead into the tunnel at present. Until then it gets no
	// datagrams, which would leave beside the tunnel.
	Routed bool
}

// provable reports whether datagrams can prove the routes.
func (p *Peer) provable() bool { return p.Address.IsValid() && p.Routed }

// Actions are due after a Step. Keys and peers are in the same order.
type Actions struct {
	Probe []noise.PublicKey // with the engine, and tell Tracker.Probed
	Ask   []Peer            // with a datagram, and tell Tracker.Answered
}

// Tracker follows all peers of a node. Its zero value has none. It is not safe for concurrent use.
type Tracker struct {
	peers   map[noise.PublicKey]*peer
	spent   []time.Time // of the last questions, at most perSecond
	began   time.Time   // of the first plan
	settled time.Time   // answers before it are not counted by Summary.CutOff
	asksAll bool        // those who gave them are asked again then
}

// peer is the record of a peer.
type peer struct {
	Peer
	state   State
	since   time.Time // of the state
	added   time.Time
	due     time.Time // of the next check
	verdict time.Time // when the last check ended, or evidence came

	asked    int // attempts of the present check; 0: none runs
	askedAt  time.Time
	reports  int // of the engine in this check
	heard    bool
	report   config.PeerProbe // the last one
	refuted  bool             // the last check proved no route
	returned time.Time        // when the peer's own datagrams were last seen to arrive
	answered bool             // it was not always silent, as far as this agent and the engine know
	first    bool             // it was a peer when the tracker began

	counters config.PeerStatus // the last ones
}

// SetPeers makes the peers those. New ones are asked first, and those with another address are not
// Proven any more. A new peer stays Routed, as by an earlier agent, until it was judged.
func (t *Tracker) SetPeers(now time.Time, all []Peer) {
	first := t.peers == nil
	if first {
		t.peers, t.began = map[noise.PublicKey]*peer{}, now
	}
	wanted := make(map[noise.PublicKey]bool, len(all))
	for _, want := range all {
		wanted[want.Key] = true
		switch p := t.peers[want.Key]; {
		case p == nil:
			t.peers[want.Key] = &peer{Peer: want, since: now, added: now, due: now, first: first}
		case p.Peer != want:
			if p.state == Proven && p.Address != want.Address {
				p.enter(now, Reachable)
			}
			p.Peer, p.due, p.asked, p.refuted = want, now, 0, false
		}
	}
	maps.DeleteFunc(t.peers, func(key noise.PublicKey, _ *peer) bool { return !wanted[key] })
}

// Changed notes that the host was changed for the peers of SetPeers. While the agent starts, peers
// that have answered before have to answer again.
func (t *Tracker) Changed(now time.Time) {
	if now.Sub(t.began) < startTime {
		t.settled, t.asksAll = now.Add(settleTime), true
	}
}

// Step ends checks, and returns which peers to ask now. Call it each second.
func (t *Tracker) Step(now time.Time) (a Actions) {
	t.spent = slices.DeleteFunc(t.spent, func(at time.Time) bool { return now.Sub(at) >= time.Second })
	again := t.asksAll && !now.Before(t.settled)
	t.asksAll = t.asksAll && !again
	var ready []*peer
	for _, p := range t.peers {
		if again && (p.state == Reachable || p.state == Proven) {
			p.asked, p.due = 0, now
		}
		if p.asked >= attempts && now.Sub(p.askedAt) >= answerTime {
			p.end(now)
		}
		if p.wantsQuestion(now) {
			ready = append(ready, p)
		}
	}
	slices.SortFunc(ready, byUrgency)
	for _, p := range ready[:min(len(ready), perSecond-len(t.spent))] {
		if p.asked == 0 {
			p.reports, p.heard = 0, false
		}
		p.asked, p.askedAt = p.asked+1, now
		t.spent = append(t.spent, now)
		a.Probe = append(a.Probe, p.Key)
		if p.provable() {
			a.Ask = append(a.Ask, p.Peer)
		}
	}
	return a
}

func (p *peer) wantsQuestion(now time.Time) bool {
	if p.asked > 0 {
		return now.Sub(p.askedAt) >= answerTime
	}
	return !now.Before(p.due)
}

// byUrgency has running checks first, and then the longest waits.
func byUrgency(a, b *peer) int {
	return cmp.Or(cmp.Compare(min(b.asked, 1), min(a.asked, 1)), a.due.Compare(b.due), slices.Compare(a.Key[:], b.Key[:]))
}

// end ends a check whose last answers are late.
func (p *peer) end(now time.Time) {
	p.asked, p.due = 0, now.Add(minTurn)
	switch {
	case p.heard: // and no datagram was answered, or the check had ended
		p.refuted = true
		p.see(now, unproved)
	case p.reports < 2: // the engine does not answer, or does not have the peer
		p.due = now.Add(retryTime)
	case p.report.Session && !p.report.Echoes: // it has a session, and answers no probes
		p.refuted = p.provable()
		if p.state != Lost {
			p.see(now, unproved)
		}
	case p.state == Pending && now.Sub(p.added) < pendingTime:
		p.due = now.Add(retryTime)
		p.see(now, unheardYet)
	default:
		p.see(now, unheard)
	}
}

// Probed takes the engine's reports. A probe is answered if the number of answers grew since the
// report before, in the same check. A new session also proves both directions.
func (t *Tracker) Probed(now time.Time, reports map[noise.PublicKey]config.PeerProbe) {
	for key, r := range reports {
		p := t.peers[key]
		if p == nil {
			continue
		}
		last := p.report
		if r.Reflected > last.Reflected {
			p.returned = now
		}
		p.report = r
		if p.asked == 0 {
			continue
		}
		if p.reports++; p.reports > 1 && (r.Answered > last.Answered || r.Session && !last.Session) {
			p.hear(now)
		}
	}
}

// Answered takes the answer to a datagram.
func (t *Tracker) Answered(now time.Time, key noise.PublicKey) {
	p := t.peers[key]
	if p == nil || !p.provable() {
		return
	}
	p.refuted, p.asked, p.due = false, 0, now.Add(minTurn)
	if p.returned.IsZero() && now.Sub(p.added) < mutualTime {
		p.due = now.Add(retryTime)
	}
	p.see(now, proved)
}

// Counted takes the counters of peers. A new handshake proves both directions. A peer to which more
// was sent while nothing was received is checked at once. A dead path with traffic is so found
// before the next turn. Received bytes alone prove one direction only, and so nothing.
func (t *Tracker) Counted(now time.Time, all []config.PeerStatus) {
	for i := range all {
		c := &all[i]
		p := t.peers[c.PublicKey]
		if p == nil {
			continue
		}
		last, known := p.counters, !p.counters.PublicKey.IsZero()
		p.answered = p.answered || !c.LastHandshake.IsZero()
		p.counters = config.PeerStatus{PublicKey: c.PublicKey, RxBytes: c.RxBytes, TxBytes: c.TxBytes, LastHandshake: c.LastHandshake}
		switch {
		case known && c.LastHandshake.After(last.LastHandshake), !known && !c.LastHandshake.IsZero() && !c.LastHandshake.Before(p.added):
			p.hear(now)
		case known && c.TxBytes > last.TxBytes && c.RxBytes == last.RxBytes && p.asked == 0 && now.Sub(p.askedAt) >= retryTime:
			p.due = now
		}
	}
}

// hear notes that both directions were proved. Without datagrams there is nothing else to prove.
func (p *peer) hear(now time.Time) {
	p.heard = true
	p.see(now, heard)
	if !p.provable() && p.asked > 0 {
		p.asked, p.due = 0, now.Add(minTurn)
	}
}

func (p *peer) see(now time.Time, e event) {
	if e != unheardYet {
		p.verdict = now
	}
	p.answered = p.answered || e != unheard && e != unheardYet
	p.enter(now, p.state.after(e))
}

func (p *peer) enter(now time.Time, s State) {
	if p.state != s {
		p.state, p.since = s, now
	}
}

// LeadsInto reports whether the routes to a peer should lead into the tunnel in the permissive
// state: from Reachable on. Routes that do so stay until a verdict, and for a minute after a loss.
func (t *Tracker) LeadsInto(now time.Time, key noise.PublicKey) bool {
	p := t.peers[key]
	return p != nil && p.leadsInto(now)
}

func (p *peer) leadsInto(now time.Time) bool {
	switch p.state {
	case Pending:
		return p.Routed
	case Lost:
		return p.Routed && now.Sub(p.since) < withdrawAfter
	default:
		return true
	}
}

// Has reports whether SetPeers had a peer.
func (t *Tracker) Has(key noise.PublicKey) bool { return t.peers[key] != nil }

// RoutesDiffer reports whether Peer.Routed of any peer is not what LeadsInto says.
func (t *Tracker) RoutesDiffer(now time.Time) bool {
	for _, p := range t.peers {
		if p.Routed != p.leadsInto(now) {
			return true
		}
	}
	return false
}
