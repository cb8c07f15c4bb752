// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// schedule is one simulation. Its JSON form is one line for all but the events, and one for each event.
type schedule struct {
	Seed  uint64 `json:"seed"`
	Hosts int    `json:"hosts"`
	// Star: host 1 is everybody's only peer. Otherwise all are peers of all.
	Star  bool `json:"star,omitempty"`
	Lanes int  `json:"lanes"`
	// Spread: hosts send hellos, spread flows and measure path MTUs. Without it, all data messages but keepalives carry inner packets, so
	// more can be checked.
	Spread bool `json:"spread,omitempty"`
	// Spray: hosts spray their largest flow. Each source port then has a way of its own through the network.
	Spray bool `json:"spray,omitempty"`
	// Calm: nothing but one upgrade, or a fallback, and an attacker disturbs the hosts. So a flow is surely sprayed, and must arrive in order,
	// and one whose source port is blocked must arrive by the listen port.
	Calm bool `json:"calm,omitempty"`
	// PostQuantum: two of three hosts exchange post-quantum keys.
	PostQuantum bool `json:"post_quantum,omitempty"`
	// Plans: hosts plan the source ports of their peers.
	Plans bool `json:"plans,omitempty"`
	// NATed: the hosts from this number on are behind a NAT each, and have a persistent keepalive. 0 for none.
	NATed   int        `json:"nated,omitempty"`
	Network conditions `json:"network"`
	Events  []event    `json:"-"`
}

// conditions are those of all links.
type conditions struct {
	// Loss, Duplicate and Late are shares of datagrams, in thousandths. A late datagram arrives within a second after its time.
	Loss      int `json:"loss,omitempty"`
	Duplicate int `json:"duplicate,omitempty"`
	Late      int `json:"late,omitempty"`
	DelayMS   int `json:"delay_ms"`
	JitterMS  int `json:"jitter_ms,omitempty"`
	// Ordered: links are FIFO, so that packets of a flow must arrive in order.
	Ordered bool `json:"ordered,omitempty"`
}

// event is one thing that happens. The meaning of A, B, N, Size and MS depends on Do.
type event struct {
	AtMS int    `json:"at"`
	Do   string `json:"do"`
	A    int    `json:"a"`
	B    int    `json:"b,omitempty"`
	N    int    `json:"n,omitempty"`
	Size int    `json:"size,omitempty"`
	MS   int    `json:"ms,omitempty"`
	flow uint16 // of the event's packets: its place in the schedule
}

func (e event) at() time.Duration { return time.Duration(e.AtMS) * time.Millisecond }
func (e event) d() time.Duration  { return time.Duration(e.MS) * time.Millisecond }

// nated reports whether a host is behind a NAT.
func (s *schedule) nated(n int) bool { return s.NATed > 0 && n >= s.NATed }

// roams reports whether a host may change its address at any time: of two peers only one may, or they would lose each other.
func (s *schedule) roams(n int) bool { return s.Star && n > 1 || n == s.Hosts }

// outageAt reports whether a host has many peers that never answer.
func (s *schedule) outageAt(n int) bool {
	return slices.ContainsFunc(s.Events, func(e event) bool { return e.Do == "outage" && e.A == n })
}

// pairs are the pairs of peers.
func (s *schedule) pairs() (pairs [][2]int) {
	for a := 1; a <= s.Hosts; a++ {
		for b := a + 1; b <= s.Hosts; b++ {
			if !s.Star || a == 1 {
				pairs = append(pairs, [2]int{a, b})
			}
		}
	}
	return pairs
}

// encode returns the schedule as text, for a file.
func (s *schedule) encode() []byte {
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	_ = out.Encode(s) // plain values
	for _, e := range s.Events {
		_ = out.Encode(e)
	}
	return b.Bytes()
}

// parseSchedule is the inverse of encode.
func parseSchedule(text []byte) (*schedule, error) {
	s := new(schedule)
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	if err := in.Decode(s); err != nil {
		return nil, fmt.Errorf("parsing a schedule: %w", err)
	}
	for in.More() {
		var e event
		if err := in.Decode(&e); err != nil {
			return nil, fmt.Errorf("parsing event %d of a schedule: %w", len(s.Events), err)
		}
		if actions[e.Do] == nil || e.A < 1 || e.A > s.Hosts || e.B < 0 || e.B > s.Hosts {
			return nil, fmt.Errorf("parsing event %d of a schedule: no such action or host", len(s.Events))
		}
		s.Events = append(s.Events, e)
	}
	return s, nil
}
