// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// classicalTime is for how long sessions with a peer are without a key until that is reported. The first session with a peer has none.
const classicalTime = 30 * time.Second

// sessionTime is how long a session lives: Reject-After-Time of WireGuard's paper, section 6.1.
const sessionTime = 180 * time.Second

// PostQuantumFacts count the nodes by their sessions.
type PostQuantumFacts struct {
	Counted     bool               // there was a count under the policy that is applied, and not long ago
	Wanted, Has config.PostQuantum // the policy that was applied, and the engine's
	Unsupported bool               // the engine does not know exchanges
	Active      int                // peers whose session has a key of an exchange
	Classical   int                // peers whose sessions have none
	Downgraded  int                // they had keys before
	Blocked     int                // peers that get no data for lack of a key
}

// PostQuantumTracker follows which sessions have keys. Its zero value has seen none. It is not safe for concurrent use.
type PostQuantumTracker struct {
	facts     PostQuantumFacts
	classical map[noise.PublicKey]time.Time // since when sessions with a peer have no key
}

// Facts returns what was seen last.
func (t *PostQuantumTracker) Facts() PostQuantumFacts { return t.facts }

// Counted takes the engine's report of the peers that are nodes; nil: it does not know exchanges. wanted is the policy that was applied before.
func (t *PostQuantumTracker) Counted(now time.Time, wanted config.PostQuantum, r *config.PostQuantumReport, peers []config.PeerStatus, isNode func(noise.PublicKey) bool) {
	f, before := PostQuantumFacts{Counted: true, Wanted: wanted, Unsupported: r == nil}, t.classical
	t.classical = map[noise.PublicKey]time.Time{}
	if r != nil {
		f.Has = r.Policy
	}
	for i := range peers {
		p := &peers[i]
		if f.Has.Or(config.DefaultPostQuantum) == config.PostQuantumOff || !isNode(p.PublicKey) {
			continue
		}
		switch q := r.Peers[p.PublicKey.Base64()]; {
		case q.Active:
			f.Active++
			continue
		case q.Blocked:
			f.Blocked++
		case q.Downgraded:
			f.Downgraded++
		}
		if now.Sub(p.LastHandshake) > sessionTime {
			continue // there is no session
		}
		since, known := before[p.PublicKey]
		if !known {
			since = now
		}
		if t.classical[p.PublicKey] = since; now.Sub(since) >= classicalTime {
			f.Classical++
		}
	}
	t.facts = f
}

// postQuantum reports the worst sessions first.
func postQuantum(f *Facts) Condition {
	c := Condition{Type: PostQuantum, Status: False}
	q := &f.PostQuantum
	wanted, has := q.Wanted.Or(config.DefaultPostQuantum), q.Has.Or(config.DefaultPostQuantum)
	switch {
	case f.Tunnel != "":
		c.Status, c.Reason, c.Message = Unknown, "TunnelDown", "there is no tunnel at present"
	case f.Strictness != NotApplied && wanted == config.PostQuantumOff && has == wanted:
		c.Status, c.Reason, c.Message = Unknown, "Off", "no session is to have a key: spec.postQuantum of the RopewalkMesh is Never, or has no value"
	case !q.Counted:
		c.Status, c.Reason, c.Message = Unknown, "NotCounted", "no sessions have been counted yet, or not for long, with the present spec.postQuantum of the RopewalkMesh"
	case q.Unsupported:
		c.Reason, c.Message = "EngineOutdated", "the engine does not know post-quantum exchanges: update ropewalk-engine"
	case has != wanted:
		c.Reason, c.Message = "NotApplied", fmt.Sprintf("the engine's policy is %s, and spec.postQuantum of the RopewalkMesh asks for %s", has, wanted)
	case q.Blocked > 0:
		c.Reason, c.Message = PostQuantumBlocked, fmt.Sprintf("no data to or from %d peers, whose sessions have no keys", q.Blocked)
	case q.Downgraded > 0:
		c.Reason, c.Message = "Downgraded", fmt.Sprintf("sessions with %d peers had keys, and have none any more", q.Downgraded)
	case q.Classical > 0:
		c.Reason, c.Message = "Classical", fmt.Sprintf("sessions with %d peers have no keys, with %d they do", q.Classical, q.Active)
	case q.Active == 0:
		c.Status, c.Reason, c.Message = Unknown, "NoSessions", "no session has a key yet"
	default:
		c.Status, c.Reason, c.Message = True, "Active", "the sessions in use with other nodes have post-quantum keys"
	}
	return c
}
