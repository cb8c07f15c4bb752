// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

const (
	// rejectAfterTime is how long after its handshake a session may be used (REJECT_AFTER_TIME of the WireGuard paper, section 6.1).
	rejectAfterTime = 180 * time.Second
	// rekeyAttemptTime is for how long a handshake is tried (REKEY_ATTEMPT_TIME, same section).
	rekeyAttemptTime = 90 * time.Second
)

// UnresponsiveDetector finds the peers that do not answer handshakes. The age of the last one does not tell: a peer that nobody
// talks to has an old one, too. But what is sent after a session's end is handshakes, so that a peer to which more and more is sent,
// with no new session for as long as one is tried, does not answer. It then counts as silent until it does.
//
// The zero value has seen nothing. It must not be used concurrently.
type UnresponsiveDetector struct {
	peers map[noise.PublicKey]peerActivity
}

// peerActivity is one peer's.
type peerActivity struct {
	handshake     time.Time // the last one
	expired       time.Time // since when there is known to be no session; zero: there may be one
	sentBytes     uint64    // until then, in bytes
	retryingSince time.Time // since when something was sent without a session; zero: nothing was
	unresponsive  bool
}

// Update takes what a device has at that time, and returns the peers that are silent, in the order given. Peers that are absent
// are forgotten.
func (s *UnresponsiveDetector) Update(now time.Time, have []config.PeerStatus) (silent []noise.PublicKey) {
	seen := make(map[noise.PublicKey]peerActivity, len(have))
	for i := range have {
		p := &have[i]
		of, known := s.peers[p.PublicKey]
		if !known || !of.handshake.Equal(p.LastHandshake) {
			of = peerActivity{handshake: p.LastHandshake}
		}
		of.update(now, p.TxBytes)
		seen[p.PublicKey] = of
		if of.unresponsive {
			silent = append(silent, p.PublicKey)
		}
	}
	s.peers = seen
	return silent
}

func (p *peerActivity) update(now time.Time, sent uint64) {
	switch {
	case now.Sub(p.handshake) < rejectAfterTime:
		p.expired, p.retryingSince = time.Time{}, time.Time{}
	case p.expired.IsZero() || sent < p.sentBytes: // or the counter restarted
		p.expired, p.sentBytes = now, sent
	case p.retryingSince.IsZero():
		if sent > p.sentBytes {
			p.retryingSince = now
		}
	case now.Sub(p.retryingSince) >= rekeyAttemptTime:
		p.unresponsive = true
	}
}
