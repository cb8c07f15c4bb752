// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

// Rotation is how far the change of a node's key is, as the node itself sees it. Generations count keys; 0 is none.
type Rotation struct {
	Requested int64 // what administrators want at least
	Current   int64 // of the key in use
	Next      int64 // of the key that is made and kept, and not in use
	// Announced is for how long the cluster has had the next key; negative: it has not got it.
	Announced time.Duration
	// Unconfirmed is how many peers there is a session with that have not been seen to accept the next key.
	Unconfirmed int
}

// RotationLimits say when others are thought to know a key.
type RotationLimits struct {
	// Propagation is the time that they get at the least.
	Propagation time.Duration
	// Timeout is the time after which those that do not accept it no longer count: a node must not keep another from
	// changing its key for ever.
	Timeout time.Duration
}

// RotationStep is what a node does next.
type RotationStep string

// The steps, in their order.
const (
	RotationIdle     RotationStep = "rest"     // nothing is to be done
	RotationGenerate RotationStep = "make"     // make the key of the generation asked for, and keep it
	RotationAnnounce RotationStep = "announce" // tell the next key
	RotationWait     RotationStep = "await"    // let the others accept it
	RotationSwitch   RotationStep = "switch"   // the next key is the key, and the old one is forgotten
)

// Step returns what to do. Each step leads to the next whatever becomes of the process in between, since a key that is made
// is kept, and a change that has begun is not undone.
func (r Rotation) Step(limits RotationLimits) RotationStep {
	switch {
	case r.Next == 0 && r.Requested <= r.Current:
		return RotationIdle
	case r.Next == 0:
		return RotationGenerate
	case r.Announced < 0:
		return RotationAnnounce
	case r.Announced < limits.Propagation || r.Unconfirmed > 0 && r.Announced < limits.Timeout:
		return RotationWait
	default:
		return RotationSwitch
	}
}

// AssignByHandshake returns the peers with a node's allowed IPs at the one of its two keys that has handshaken last, which it is known
// to use by that: in a plan they are at the one that it tells to use.
func AssignByHandshake(peers []Peer, have []config.PeerStatus) []Peer {
	if !slices.ContainsFunc(peers, Peer.isReplacement) {
		return peers
	}
	at := make(map[noise.PublicKey]time.Time, len(have))
	for i := range have {
		at[have[i].PublicKey] = have[i].LastHandshake
	}
	index := make(map[noise.PublicKey]int, len(peers))
	for i := range peers {
		index[peers[i].Key] = i
	}
	shifted := slices.Clone(peers)
	for i := range peers {
		p := &shifted[i]
		if !p.isReplacement() || !at[p.Key].After(at[p.Replaces]) {
			continue
		}
		before, known := index[p.Replaces]
		if !known { // plans have both, but what was kept in a file may be anything
			continue
		}
		old := &shifted[before]
		p.AllowedIPs, old.AllowedIPs = old.AllowedIPs, nil
	}
	return shifted
}

// AllowedIPMoves returns the changes that make allowed IPs those of Shift, where that differs from what a device has, and no others.
func AllowedIPMoves(peers []Peer, have []config.PeerStatus) []config.Peer {
	present := map[noise.PublicKey]*config.PeerStatus{} // of the nodes whose key changes
	for _, p := range peers {
		if p.isReplacement() {
			present[p.Key], present[p.Replaces] = nil, nil
		}
	}
	for i := range have {
		if _, changes := present[have[i].PublicKey]; changes {
			present[have[i].PublicKey] = &have[i]
		}
	}
	var taken, given []config.Peer
	for _, p := range AssignByHandshake(peers, have) {
		st := present[p.Key]
		if st == nil {
			continue
		}
		less, more := p.diffAllowedIPs(st)
		if len(less) > 0 {
			taken = append(taken, config.Peer{PublicKey: p.Key, UpdateOnly: true, AllowedIPs: less})
		}
		if len(more) > 0 {
			given = append(given, config.Peer{PublicKey: p.Key, UpdateOnly: true, AllowedIPs: more})
		}
	}
	return append(taken, given...)
}

// isReplacement tells whether the key is to take the place of another.
func (p Peer) isReplacement() bool { return !p.Replaces.IsZero() }
