// SPDX-License-Identifier: Apache-2.0

package config

import "fmt"

// ManyUnanswered is the number of unanswered initiations from which a handshake counts as failing: it takes fifteen seconds.
const ManyUnanswered = 3

// PeerHandshake describes a handshake that does not succeed.
type PeerHandshake struct {
	Unanswered int    `json:"unanswered"`           // initiations since the last complete handshake
	Error      string `json:"send_error,omitempty"` // of the last one, if it could not be sent
	// Refused is why this host refused a handshake message from the peer's endpoint since then, "" if it refused none. Anybody can forge
	// such a message.
	Refused Refusal `json:"refused,omitempty"`
	// RefusedKey is the public key of the sender, in base64, for RefusedKey.
	RefusedKey string `json:"refused_key,omitempty"`
}

// Refusal is why a handshake message was refused. WireGuard answers no such message, so only the side that refuses knows.
type Refusal string

// The reasons.
const (
	RefusedMAC1     Refusal = "mac1"     // it is for another public key than this host's
	RefusedKey      Refusal = "key"      // it is an initiation with a public key that no peer has
	RefusedResponse Refusal = "response" // it is a response that is not authentic: the preshared keys differ
)

// Failing reports whether at least ManyUnanswered initiations are unanswered, so that something is wrong.
func (h PeerHandshake) Failing() bool { return h.Unanswered >= ManyUnanswered }

// String describes a failing handshake for people; it is empty for others.
func (h PeerHandshake) String() string {
	if !h.Failing() {
		return ""
	}
	text := fmt.Sprintf("%d initiations unanswered", h.Unanswered)
	if h.Error != "" {
		text += ", the last could not be sent: " + h.Error
	}
	if h.Refused != "" {
		text += "; " + h.RefusedText()
	}
	return text
}

// RefusedText describes Refused for people.
func (h PeerHandshake) RefusedText() string {
	switch h.Refused {
	case RefusedMAC1:
		return "its endpoint sends handshake messages for another public key than this host's"
	case RefusedKey:
		return fmt.Sprintf("its endpoint sends initiations with the public key %s, which no peer has", h.RefusedKey)
	case RefusedResponse:
		return "its responses are not authentic, as with another preshared key"
	}
	return ""
}

// HandshakeReport has the peers whose handshakes fail, by public key in base64. It is the member "failing_handshakes" of the stats
// operation's JSON.
type HandshakeReport map[string]PeerHandshake

// AddHandshakes stores a report in st.
func (st *Status) AddHandshakes(r HandshakeReport) {
	for i := range st.Peers {
		st.Peers[i].Handshake = r[st.Peers[i].PublicKey.Base64()]
	}
}
