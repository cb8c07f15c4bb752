// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// PeerProbe describes the test of one peer, in JSON the answer to the probe operation. Counters
// cover all tests since the peer was configured.
type PeerProbe struct {
	Up        bool          `json:"up"`      // the interface is up
	Session   bool          `json:"session"` // data can be sent
	Handshake PeerHandshake `json:"handshake"`
	Echoes    bool          `json:"echoes"`   // the peer answers probes
	Sent      uint64        `json:"sent"`     // probes
	Answered  uint64        `json:"answered"` // probes of those
	RTT       time.Duration `json:"rtt_ns"`   // of the last answered one
	// Reflected is the number of requests from the peer that this host's reflector has answered.
	Reflected uint64 `json:"reflected"`
}

// ReflectorReport describes the reflector (package netio/reflector), in the JSON of the statistics.
type ReflectorReport struct {
	Port     uint16 `json:"port"`
	Answered uint64 `json:"answered"` // requests
	Ignored  uint64 `json:"ignored"`  // datagrams: no requests, of no peer, or too many
}
