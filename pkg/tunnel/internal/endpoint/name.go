// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Resolved is the result of a lookup.
type Resolved struct {
	Endpoints []config.Endpoint // in order of preference
	TTL       time.Duration     // of the name's records; 0 if unknown
}

// Bounds of the time between two lookups of an endpoint's name.
const (
	defaultTTL  = int64(5 * time.Minute)  // without a known TTL
	minTTL      = int64(30 * time.Second) // of records with a shorter one
	maxTTL      = int64(time.Hour)
	lookupPause = int64(10 * time.Second) // while handshakes fail, unless the TTL is longer
	failureTTL  = int64(30 * time.Second) // while handshakes fail, at most
)

// Name is the name from which a peer's endpoint was resolved. A nil *Name is none. No timer belongs to
// it: handshakes look the name up again, so that an idle peer costs nothing.
type Name struct {
	text    string            // host:port
	known   []config.Endpoint // its addresses at the last lookup
	last    int64             // when it was looked up
	ttl     int64             // ns, 0 if unknown
	running bool              // a lookup was requested, and has no result yet
}

// NewName returns the name of an endpoint that was resolved now, nil for an empty one.
func NewName(text string, endpoint config.Endpoint, now int64) *Name {
	if text == "" {
		return nil
	}
	return &Name{text: text, known: []config.Endpoint{endpoint}, last: now}
}

// String returns the name, empty for none.
func (n *Name) String() string {
	if n == nil {
		return ""
	}
	return n.text
}

// Known returns the addresses at the last lookup.
func (n *Name) Known() []config.Endpoint { return n.known }

// Request reports whether to look the name up: its addresses are old, or less old and handshakes fail.
// The lookup ends with Cancel, Fail or Note.
func (n *Name) Request(now int64, failing bool) bool {
	if n == nil || n.running {
		return false
	}
	due := n.last + cmp.Or(n.ttl, defaultTTL)
	if failing {
		due = n.last + min(max(n.ttl, lookupPause), failureTTL)
	}
	n.running = now >= due
	return n.running
}

// Cancel is called if a lookup is not made.
func (n *Name) Cancel() {
	if n != nil {
		n.running = false
	}
}

// Fail is called if a lookup has no result.
func (n *Name) Fail(now int64) { n.running, n.last, n.ttl = false, now, minTTL }

// Note takes the result of a lookup, which has an address. It returns the address to use, and whether it
// is not the present one.
func (n *Name) Note(r Resolved, present *underlay.Endpoint, failing bool, now int64) (to config.Endpoint, move bool) {
	n.running, n.last, n.ttl = false, now, 0
	if r.TTL > 0 {
		n.ttl = min(max(int64(r.TTL), minTTL), maxTTL)
	}
	known := n.known
	n.known = r.Endpoints
	if present == nil {
		return r.Endpoints[0], true
	}
	return choose(config.Endpoint{AddrPort: present.Dst, Scope: present.Scope}, known, r.Endpoints, failing)
}

// choose returns the address to use after a lookup, and whether it differs from the present one. An
// address that works stays, also if the peer has roamed there, unless the name had it and has it no more.
// An address that does not work is replaced by the name's next one.
func choose(present config.Endpoint, known, resolved []config.Endpoint, failing bool) (to config.Endpoint, move bool) {
	i := slices.Index(resolved, present)
	switch {
	case i >= 0 && failing:
		to = resolved[(i+1)%len(resolved)]
	case i < 0 && (failing || slices.Contains(known, present)):
		to = resolved[0]
	default:
		return present, false
	}
	return to, to != present
}

// MoveScope is called after a link has got another index.
func (n *Name) MoveScope(from, to uint32) {
	if n == nil {
		return
	}
	for i := range n.known {
		if n.known[i].Scope == from {
			n.known[i].Scope = to
		}
	}
}
