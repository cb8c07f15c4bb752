// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"maps"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

const (
	// rejectAfterTime is the maximum age of a session (REJECT_AFTER_TIME of the WireGuard paper, section 6.1).
	rejectAfterTime = 180 * time.Second
	// rekeyAttemptTime is how long a handshake is retried (REKEY_ATTEMPT_TIME, same section).
	rekeyAttemptTime = 90 * time.Second
)

// UnresponsiveDetector finds peers that do not answer handshakes. The age of the last handshake is no criterion: a peer without
// traffic has an old one, too. Without a session, however, a device sends nothing but handshake initiations. A peer is
// unresponsive if the sent bytes grow after its session's end, and no handshake completes within rekeyAttemptTime. It stays so
// until one does.
//
// The zero value is ready. It is not safe for concurrent use.
type UnresponsiveDetector struct {
	peers map[noise.PublicKey]peerActivity
}

// peerActivity is the record of one peer.
type peerActivity struct {
	handshake     time.Time // the last one
	expired       time.Time // when the session was first seen to have ended; zero: there may be one
	sentBytes     uint64    // until then
	retryingSince time.Time // when something was first sent without a session; zero: nothing was
	unresponsive  bool
}

// Update evaluates a device's peers and returns the unresponsive ones, in the given order. It forgets peers that are absent.
func (s *UnresponsiveDetector) Update(now time.Time, have []config.PeerStatus) (silent []noise.PublicKey) {
	if s.peers == nil {
		s.peers = make(map[noise.PublicKey]peerActivity, len(have))
	}
	for i := range have {
		p := &have[i]
		of, known := s.peers[p.PublicKey]
		if !known || !of.handshake.Equal(p.LastHandshake) {
			of = peerActivity{handshake: p.LastHandshake}
		}
		of.update(now, p.TxBytes)
		s.peers[p.PublicKey] = of
		if of.unresponsive {
			silent = append(silent, p.PublicKey)
		}
	}
	if len(s.peers) > len(have) {
		s.forgetAbsent(have)
	}
	return silent
}

// forgetAbsent removes the peers that a device does not have any more.
func (s *UnresponsiveDetector) forgetAbsent(have []config.PeerStatus) {
	present := make(map[noise.PublicKey]struct{}, len(have))
	for i := range have {
		present[have[i].PublicKey] = struct{}{}
	}
	maps.DeleteFunc(s.peers, func(key noise.PublicKey, _ peerActivity) bool {
		_, ok := present[key]
		return !ok
	})
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
