// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"maps"
	"slices"
	"time"
)

// Sizes and times of the WireGuard paper, sections 5.4 and 6.1.
const (
	initiationBytes = 148 // of the first message of a handshake
	responseBytes   = 92  // of the answer
	rekeyTimeout    = 5 * time.Second
)

const (
	// earlyHandshake is the greatest time between two handshakes of which the later one came early: a session in use has one every 120 s.
	earlyHandshake = 90 * time.Second
	// earlyHandshakes is the number of them in a row that make a stall.
	earlyHandshakes = 3
	// restartInterval is the least time between two restarts of a peer.
	restartInterval = 10 * time.Minute
)

// peerRecord is the result of samples of a peer's counters. A peer is stalled if handshakes
// complete again and again, 15 s apart (KEEPALIVE_TIMEOUT + REKEY_TIMEOUT), and nothing but them
// arrives. So it is with a kernel whose receive queue of the peer has stopped, since handshakes
// do not pass that queue (CVE-2026-52945). The time of the last handshake shows only handshakes
// that this side began: the other ones complete with the first data, which does pass it.
type peerRecord struct {
	sample    TunnelPeer
	at        time.Time // of the sample; zero: there was none
	initiated time.Time // when a sample last had an initiation of the peer; zero: none had since anything else arrived
	early     int       // number of early handshakes in a row
	stalled   bool
	restarted time.Time // the last restart; zero: none
}

// next returns the record after another sample.
func (r peerRecord) next(now time.Time, p *TunnelPeer) peerRecord {
	n := peerRecord{sample: *p, at: now, restarted: r.restarted}
	if r.at.IsZero() || p.ReceivedBytes < r.sample.ReceivedBytes {
		return n
	}
	initiations, ok := countInitiations(p.ReceivedBytes-r.sample.ReceivedBytes, now.Sub(r.at))
	if !ok {
		return n
	}
	n.early, n.initiated = r.early, r.initiated
	count := func(early bool) {
		n.early++
		if !early {
			n.early = 0
		}
	}
	if since := p.LastHandshake.Sub(r.sample.LastHandshake); since != 0 {
		count(since > 0 && since <= earlyHandshake)
	}
	if initiations > 0 {
		since := now.Sub(r.initiated)
		// A peer without responses repeats its initiation, REKEY_TIMEOUT apart: its handshakes do not complete.
		count(since <= earlyHandshake && since >= time.Duration(initiations)*2*rekeyTimeout)
		n.initiated = now
	}
	n.stalled = n.early >= earlyHandshakes
	return n
}

// countInitiations returns how many of the bytes' messages are initiations, if all may be messages of handshakes. Each side begins at most one
// per rekeyTimeout.
func countInitiations(bytes uint64, within time.Duration) (n int, ok bool) {
	limit := uint64(within/rekeyTimeout) + 2
	for i := range limit {
		if rest := bytes - i*initiationBytes; i*initiationBytes <= bytes && rest%responseBytes == 0 && rest/responseBytes < limit {
			return int(i), true
		}
	}
	return 0, false
}

// stallWatch has a record of each peer, by its public key.
type stallWatch map[string]peerRecord

// update evaluates the present peers. Of all others it keeps the times of restarts within
// restartInterval. It returns the peers that have become stalled, and the peers that are no
// longer.
func (w stallWatch) update(now time.Time, peers []TunnelPeer) (stalled, recovered []string) {
	present := make(map[string]bool, len(peers))
	for i := range peers {
		p := &peers[i]
		before := w[p.Key]
		after := before.next(now, p)
		w[p.Key], present[p.Key] = after, true
		switch {
		case after.stalled && !before.stalled:
			stalled = append(stalled, p.Key)
		case before.stalled && !after.stalled:
			recovered = append(recovered, p.Key)
		}
	}
	for key, r := range w {
		if !present[key] {
			w[key] = peerRecord{restarted: r.restarted}
		}
	}
	maps.DeleteFunc(w, func(key string, r peerRecord) bool { return !present[key] && now.Sub(r.restarted) >= restartInterval })
	return stalled, recovered
}

// takeRestarts returns the stalled peers that may be restarted now, in order, and records that they are.
func (w stallWatch) takeRestarts(now time.Time) (keys []string) {
	for key, r := range w {
		if r.stalled && (r.restarted.IsZero() || now.Sub(r.restarted) >= restartInterval) {
			keys = append(keys, key)
			w[key] = peerRecord{restarted: now}
		}
	}
	slices.Sort(keys)
	return keys
}
