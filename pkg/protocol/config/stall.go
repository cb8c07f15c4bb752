// SPDX-License-Identifier: Apache-2.0

package config

// StallReport counts what took packets and made no progress. Lanes are the loops that have stalled and do not go on: tx0 is the transmit loop
// of lane 0. Queues are the lanes with a transmit queue of which that is true.
type StallReport struct {
	Transmit uint64   `json:"transmit"` // of transmit loops
	Receive  uint64   `json:"receive"`  // of receive loops
	Staged   uint64   `json:"staged"`   // of packets that waited for a session without a handshake
	Queued   uint64   `json:"queued"`   // of transmit queues whose send buffer had no room
	Lanes    []string `json:"lanes,omitempty"`
	Queues   []int    `json:"queues,omitempty"`
}
