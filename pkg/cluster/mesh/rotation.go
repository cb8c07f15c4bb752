// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Rotation is the progress of a key change, from the node's own point of view. Generations count keys; 0 is none.
type Rotation struct {
	Requested int64 // minimum generation that administrators request
	Current   int64 // generation of the current key
	Next      int64 // generation of the stored next key, which is not in use yet
	// Announced is how long the cluster has had the next key; negative: not yet.
	Announced time.Duration
}

// RotationStep is a node's next step.
type RotationStep string

// The steps, in order.
const (
	RotationIdle     RotationStep = "rest"     // nothing to do
	RotationGenerate RotationStep = "make"     // generate and store a key of the requested generation
	RotationAnnounce RotationStep = "announce" // publish the next key
	RotationWait     RotationStep = "await"    // wait for other nodes to learn it
	RotationSwitch   RotationStep = "switch"   // make the next key the current one and delete the old one
)

// Step returns the next step. The steps survive a restart at any point, because a generated key is stored and a change is never
// reverted. propagation is the time for others to learn the next key.
func (r Rotation) Step(propagation time.Duration) RotationStep {
	switch {
	case r.Next == 0 && r.Requested <= r.Current:
		return RotationIdle
	case r.Next == 0:
		return RotationGenerate
	case r.Announced < 0:
		return RotationAnnounce
	case r.Announced < propagation:
		return RotationWait
	default:
		return RotationSwitch
	}
}

// AssignByHandshake returns the peers with each node's allowed IPs at the key with the later handshake, which the node
// therefore uses. In a plan, they are at the published current key.
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
		if !known { // always known in plans, but maybe not in a saved file
			continue
		}
		old := &shifted[before]
		p.AllowedIPs, old.AllowedIPs = old.AllowedIPs, nil
	}
	return shifted
}

// AllowedIPMoves returns the changes of allowed IPs that AssignByHandshake implies, and no others.
func AllowedIPMoves(peers []Peer, have []config.PeerStatus) []config.Peer {
	present := map[noise.PublicKey]*config.PeerStatus{} // of the nodes that change their key
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

// isReplacement reports whether the key is to replace another one.
func (p Peer) isReplacement() bool { return !p.Replaces.IsZero() }
