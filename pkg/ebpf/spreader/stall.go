// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"maps"
	"slices"
	"time"
)

// Times and sizes of the WireGuard paper, sections 5.4 and 6.1.
const (
	rekeyAttemptTime = 90 * time.Second
	rejectAfterTime  = 180 * time.Second
	responseBytes    = 92 // of a response to a handshake
)

const (
	// earlyHandshake is the greatest time between two handshakes of which the later one came early: a session in use has one every 120 s.
	earlyHandshake = 90 * time.Second
	// earlyHandshakes is the number of them in a row that make a stall.
	earlyHandshakes = 3
	// restartInterval is the least time between two restarts of a peer.
	restartInterval = 10 * time.Minute
)

// peerRecord is what samples of a peer's counters have shown. A peer is stalled if nothing but responses to handshakes arrives from it,
// and one of two holds. Handshakes complete again and again, 15 s apart (KEEPALIVE_TIMEOUT + REKEY_TIMEOUT): so does a kernel whose
// receive queue of the peer has stopped, since its handshakes do not pass that queue (CVE-2026-52945). Or the session has ended, and
// handshakes have failed for rekeyAttemptTime.
type peerRecord struct {
	sample    TunnelPeer
	at        time.Time // of the sample; zero: there was none
	early     int       // number of early handshakes in a row
	trying    time.Time // when the first byte was sent without a session; zero: none was
	stalled   bool
	restarted time.Time // the last restart; zero: none
}

// next returns the record after another sample.
func (r peerRecord) next(now time.Time, p *TunnelPeer) peerRecord {
	n := peerRecord{sample: *p, at: now, restarted: r.restarted}
	// Between two samples there may have been several handshakes. Other messages rarely add up to a multiple of a response.
	if r.at.IsZero() || p.ReceivedBytes < r.sample.ReceivedBytes || (p.ReceivedBytes-r.sample.ReceivedBytes)%responseBytes != 0 {
		return n
	}
	switch since := p.LastHandshake.Sub(r.sample.LastHandshake); {
	case since > 0 && since <= earlyHandshake:
		n.early = r.early + 1
	case since != 0: // a usual one, or the first
	case now.Sub(p.LastHandshake) < rejectAfterTime:
		n.early = r.early
	default:
		n.early, n.trying = r.early, r.trying
		if n.trying.IsZero() && p.SentBytes > r.sample.SentBytes {
			n.trying = now
		}
	}
	n.stalled = n.early >= earlyHandshakes || !n.trying.IsZero() && now.Sub(n.trying) >= rekeyAttemptTime
	return n
}

// stallWatch has a record of each peer, by its public key.
type stallWatch map[string]peerRecord

// update evaluates the present peers and forgets all others. It returns the peers that have become stalled, and those that are no longer.
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
	maps.DeleteFunc(w, func(key string, _ peerRecord) bool { return !present[key] })
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
