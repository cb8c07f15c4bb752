// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Summary counts the peers.
type Summary struct {
	Peers, Pending, Reachable, Proven, Lost int
	// Judged are the peers whose last outcome is at most a turn old. JudgedLost of them are Lost.
	// With more than 600 peers they are a sample.
	Judged, JudgedLost int
	// Waiting were peers at the start, were asked, and have neither answered nor been judged yet.
	// Joining came later and have not answered: they may not know this node yet. Stale of Judged
	// have answered before the last change of the start, and Again of Stale were asked since.
	Waiting, Joining, Stale, Again int
	// Silent of JudgedLost and Waiting have never answered, and had no session with the engine.
	Silent int
	// Unproven are Reachable, but answer no datagrams: the routes do not lead through the tunnel.
	Unproven int
	// Unrouted are those to which no routes lead into the tunnel at present.
	Unrouted int
	// Unprovable have no address to which to send datagrams.
	Unprovable int
	// Mutual are Proven, and their own datagrams arrived within the last two turns.
	Mutual int
}

// Summary returns the present counts.
func (t *Tracker) Summary(now time.Time) (s Summary) {
	s.Peers = len(t.peers)
	turn := max(minTurn, time.Duration(len(t.peers))*time.Second/perSecond)
	for _, p := range t.peers {
		*[...]*int{Pending: &s.Pending, Reachable: &s.Reachable, Proven: &s.Proven, Lost: &s.Lost}[p.state]++
		if !p.Routed {
			s.Unrouted++
		}
		recent := !p.verdict.IsZero() && now.Sub(p.verdict) <= verdictTime
		waits := p.state == Pending && p.first && !p.askedAt.IsZero()
		switch {
		case waits:
			s.Waiting++
		case p.state == Pending && !p.first:
			s.Joining++
		case p.state == Reachable && !p.Address.IsValid():
			s.Unprovable++
		case p.state == Reachable && p.refuted:
			s.Unproven++
		case p.state == Proven && !p.returned.IsZero() && now.Sub(p.returned) <= 2*turn:
			s.Mutual++
		}
		if recent {
			s.Judged++
		}
		if recent && p.state == Lost {
			s.JudgedLost++
		}
		if recent && p.state != Lost && p.verdict.Before(t.settled) {
			s.Stale++
			if !p.askedAt.Before(t.settled) {
				s.Again++
			}
		}
		if (waits || recent && p.state == Lost) && !p.answered {
			s.Silent++
		}
	}
	return s
}

// CutOff returns why the node is not ready for the pods of others, or "". At least half of the
// judged peers have to answer. A peer of the start counts from the first question on: an agent that
// starts is ready by answers, not for lack of verdicts. Answers from before its last change are
// none. An only peer may be down itself, if it has answered before.
func (s *Summary) CutOff() string {
	silent := s.JudgedLost + s.Waiting + s.Again
	asked := s.Judged - s.Stale + s.Waiting + s.Again
	switch {
	case s.Peers == s.Joining || s.Peers == 1 && asked == 1 && s.Silent == 0:
		return ""
	case asked == 0:
		return "no peer has been asked since the last change"
	case 2*silent > asked:
		return fmt.Sprintf("%d of %d peers that were asked do not answer", silent, asked)
	}
	return ""
}

// Lost returns the keys of the lost peers, in any order.
func (t *Tracker) Lost() (keys []noise.PublicKey) {
	for key, p := range t.peers {
		if p.state == Lost {
			keys = append(keys, key)
		}
	}
	return keys
}
