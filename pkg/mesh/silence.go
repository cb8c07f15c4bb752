// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

const (
	// sessionLife is how long after its handshake a session may be used (REJECT_AFTER_TIME of the WireGuard paper, section 6.1).
	sessionLife = 180 * time.Second
	// attempt is for how long a handshake is tried (REKEY_ATTEMPT_TIME, same section).
	attempt = 90 * time.Second
)

// Silence finds the peers that do not answer handshakes. The age of the last one does not tell: a peer that nobody
// talks to has an old one, too. But what is sent after a session's end is handshakes, so that a peer to which more and more is sent,
// with no new session for as long as one is tried, does not answer. It then counts as silent until it does.
//
// The zero value has seen nothing. It must not be used concurrently.
type Silence struct {
	seen map[noise.PublicKey]silence
}

// silence is one peer's.
type silence struct {
	handshake time.Time // the last one
	dead      time.Time // since when there is known to be no session; zero: there may be one
	sent      uint64    // until then, in bytes
	tried     time.Time // since when something was sent without a session; zero: nothing was
	silent    bool
}

// Look takes what a device has at that time, and returns the peers that are silent, in the order given. Peers that are absent
// are forgotten.
func (s *Silence) Look(now time.Time, have []config.PeerStatus) (silent []noise.PublicKey) {
	seen := make(map[noise.PublicKey]silence, len(have))
	for i := range have {
		p := &have[i]
		of, known := s.seen[p.PublicKey]
		if !known || !of.handshake.Equal(p.LastHandshake) {
			of = silence{handshake: p.LastHandshake}
		}
		of.look(now, p.TxBytes)
		seen[p.PublicKey] = of
		if of.silent {
			silent = append(silent, p.PublicKey)
		}
	}
	s.seen = seen
	return silent
}

func (p *silence) look(now time.Time, sent uint64) {
	switch {
	case now.Sub(p.handshake) < sessionLife:
		p.dead, p.tried = time.Time{}, time.Time{}
	case p.dead.IsZero() || sent < p.sent: // or the counter began anew
		p.dead, p.sent = now, sent
	case p.tried.IsZero():
		if sent > p.sent {
			p.tried = now
		}
	case now.Sub(p.tried) >= attempt:
		p.silent = true
	}
}
