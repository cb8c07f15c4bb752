// SPDX-License-Identifier: Apache-2.0

// Package model predicts the throughput of a tunnel between two ropewalks on machines with more cores than can be measured. Bounds
// computes a bound per resource. Run is a discrete-event simulation of flows, source ports, NIC queues, cores and lanes. Both use
// the same measured stage costs, and select ports with the code of pkg/protocol/spread. The package has no clock and no I/O: the
// same Config gives the same Result.
package model

import (
	"encoding/json"
	"fmt"
	"math"
)

// Stage is one step in the processing of a train. The constants are in the order of processing.
type Stage int

const (
	// AppSend is the sending application's write: its copy, the inner TCP, the transmission to the TUN's queue.
	AppSend Stage = iota
	// TUNRead is the transmitting lane's read of one element.
	TUNRead
	// Split is parsing, checksums and the copy into separate packets.
	Split
	// Seal is encryption, without the wait for the session's nonce counter.
	Seal
	// Send is sendmsg up to the NIC's ring.
	Send
	// Softirq is the receiving NIC queue's work: driver, GRO, outer IP and UDP, up to the lane's socket.
	Softirq
	// Receive is the receiving lane's recvmmsg.
	Receive
	// Open is decryption, without the update of the replay window.
	Open
	// Merge joins packets into a train.
	Merge
	// TUNWrite is writev to the TUN, with the inner IP and TCP up to the application's socket.
	TUNWrite
	// AppReceive is the receiving application's read.
	AppReceive
	stages
)

var stageNames = [stages]string{ //nolint:gochecknoglobals // Go has no constant arrays
	"app_send", "tun_read", "split", "seal", "send", "softirq", "receive", "open", "merge", "tun_write", "app_receive",
}

// String returns the stage's name, as in the file of costs.
func (s Stage) String() string {
	if s < 0 || s >= stages {
		return fmt.Sprintf("Stage(%d)", int(s))
	}
	return stageNames[s]
}

// AllStages returns all stages, in order.
func AllStages() []Stage {
	all := make([]Stage, stages)
	for i := range all {
		all[i] = Stage(i)
	}
	return all
}

// Train is a unit of work: inner packets of one flow that are handled as one element.
type Train struct {
	Packets int `json:"packets"`
	Bytes   int `json:"bytes"` // of inner packets
}

// Cost is the CPU time of a stage, in ns.
type Cost struct {
	Element float64 `json:"element_ns"`
	Packet  float64 `json:"packet_ns"`
	Byte    float64 `json:"byte_ns"`
}

// Of returns the CPU time for a train, in ns.
func (c Cost) Of(t Train) float64 {
	return c.Element + c.Packet*float64(t.Packets) + c.Byte*float64(t.Bytes)
}

// Costs are the costs of all stages, by stage.
type Costs [stages]Cost

// Of returns the sum of the CPU time of these stages for a train, in ns.
func (c *Costs) Of(t Train, list ...Stage) float64 {
	sum := 0.0
	for _, s := range list {
		sum += c[s].Of(t)
	}
	return sum
}

// sums is the part of Merge that reads the payload, to verify checksums. The thread that opens a train does it.
func (c *Costs) sums(t Train) float64 { return c[Merge].Byte * float64(t.Bytes) }

// check is the other part of Merge: to check and account the packets, and to join their headers.
func (c *Costs) check(t Train) float64 { return c.Of(t, Merge) - c.sums(t) }

// MarshalJSON implements json.Marshaler: an object by stage name.
func (c Costs) MarshalJSON() ([]byte, error) {
	m := map[string]Cost{}
	for _, s := range AllStages() {
		m[s.String()] = c[s]
	}
	return json.Marshal(m)
}

// UnmarshalJSON implements json.Unmarshaler. Every stage must be present, and no cost may be negative.
func (c *Costs) UnmarshalJSON(b []byte) error {
	var m map[string]Cost
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("reading stage costs: %w", err)
	}
	for _, s := range AllStages() {
		cost, ok := m[s.String()]
		if !ok {
			return fmt.Errorf("reading stage costs: stage %s is missing", s)
		}
		if !validCost(cost.Element) || !validCost(cost.Packet) || !validCost(cost.Byte) {
			return fmt.Errorf("reading stage costs: stage %s has a cost below zero", s)
		}
		c[s] = cost
	}
	return nil
}

func validCost(x float64) bool { return x >= 0 && !math.IsInf(x, 0) && !math.IsNaN(x) }
