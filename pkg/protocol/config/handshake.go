// SPDX-License-Identifier: Apache-2.0

package config

import "fmt"

// ManyUnanswered is the number of unanswered initiations from which a handshake counts as failing: it takes fifteen seconds.
const ManyUnanswered = 3

// PeerHandshake describes a handshake that does not succeed.
type PeerHandshake struct {
	Unanswered int    `json:"unanswered"`           // initiations since the last complete handshake
	Error      string `json:"send_error,omitempty"` // of the last one, if it could not be sent
}

// Failing reports whether so many initiations are unanswered that something is wrong.
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
	return text
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
