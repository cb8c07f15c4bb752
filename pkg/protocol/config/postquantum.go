// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
)

// PostQuantum says whether sessions with a peer use keys of post-quantum exchanges.
type PostQuantum uint8

// The policies.
const (
	PostQuantumDefault  PostQuantum = iota // of a peer: as its interface; of an interface: DefaultPostQuantum
	PostQuantumAuto                        // with peers that take part; inactive while spread is off
	PostQuantumOff                         // with none
	PostQuantumRequired                    // sessions without carry no data
)

// DefaultPostQuantum is the policy of interfaces that have none.
const DefaultPostQuantum = PostQuantumOff

// WantPostQuantum lists the values in errors.
const WantPostQuantum = `"auto", "off", "required" or "default"`

// PostQuantumForget, in any case and in place of the policy of a peer, is Peer.ForgetPostQuantum.
const PostQuantumForget = "forget"

var postQuantumPolicies = names{"default", "auto", "off", "required"}

// ParsePostQuantum returns the policy of that name, in any case.
func ParsePostQuantum(s string) (PostQuantum, error) {
	return parseName[PostQuantum](postQuantumPolicies, s)
}

// Or returns p, or other in place of PostQuantumDefault.
func (p PostQuantum) Or(other PostQuantum) PostQuantum {
	if p == PostQuantumDefault {
		return other
	}
	return p
}

// String returns the name: default, auto, off or required.
func (p PostQuantum) String() string { return postQuantumPolicies.of(int(p)) }

// MarshalText implements encoding.TextMarshaler with String.
func (p PostQuantum) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParsePostQuantum.
func (p *PostQuantum) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePostQuantum(string(text))
	return err
}

// PostQuantumSuite is the name of the algorithm of exchanges.
const PostQuantumSuite = "ML-KEM-768"

// PeerPostQuantum describes whether the session in use with a peer has a key of a post-quantum exchange.
type PeerPostQuantum struct {
	Policy PostQuantum `json:"policy"`        // auto, off or required
	Own    bool        `json:"own,omitempty"` // the peer has the policy, not the interface
	Active bool        `json:"active"`
	Suite  string      `json:"suite,omitempty"`       // if active
	Age    float64     `json:"age_seconds,omitempty"` // of the key, if active
	Stale  bool        `json:"stale,omitempty"`       // active, and sessions have failed to renew the key for ten minutes
	Reason string      `json:"reason,omitempty"`      // why not active, for display; empty if the policy is off
	// Downgraded: sessions with the peer had keys, and have none for half a minute. Blocked: no data is sent or accepted for lack of a key.
	Downgraded bool `json:"downgraded,omitempty"`
	Blocked    bool `json:"blocked,omitempty"`
}

// String describes the session for people, such as "ML-KEM-768, renewed 41 s ago". It is empty if the policy is off.
func (p PeerPostQuantum) String() string {
	switch {
	case p.Active:
		text := fmt.Sprintf("%s, renewed %.0f s ago", p.Suite, p.Age)
		if p.Stale {
			text += ", stale"
		}
		return text
	case p.Blocked:
		return "blocked (required): " + p.Reason
	case p.Downgraded:
		return "none any more: " + p.Reason
	case p.Reason != "":
		return "none: " + p.Reason
	}
	return ""
}

// PostQuantumReport is how post-quantum a device's sessions are: a part of its status for which the UAPI's get operation has no keys. It is the member
// "post_quantum" of the stats operation's JSON, and contains no secrets.
type PostQuantumReport struct {
	Policy PostQuantum `json:"policy"` // of the interface, as configured
	// Peers are by public key, in base64. Peers that follow an interface with the policy off are left out.
	Peers map[string]PeerPostQuantum `json:"peers"`
	// Exchanges counts the exchanges with all present and removed peers by result: completed, timeout, mismatch, malformed, limited, glare.
	Exchanges  map[string]uint64 `json:"exchanges"`
	Fallbacks  uint64            `json:"fallbacks"`  // handshakes in which the peer had lost the key that was named
	Downgrades uint64            `json:"downgrades"` // how often sessions with a peer had no key any more for half a minute
}

// AddPostQuantum stores a report in st. Peers that are not in the report get the zero PeerPostQuantum.
func (st *Status) AddPostQuantum(r PostQuantumReport) {
	for i := range st.Peers {
		st.Peers[i].PostQuantum = r.Peers[st.Peers[i].PublicKey.Base64()]
	}
}
