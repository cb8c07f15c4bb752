// SPDX-License-Identifier: Apache-2.0

// Package measurement holds comparisons of the two underlays, UDP sockets and AF_XDP, on network devices of this host.
// `ropewalk bench underlay` measures and saves them. Underlay = auto and doctor read them. Begin with Result.
//
// Not for other programs: it may change without notice.
package measurement

import (
	"fmt"
	"math"
	"time"
)

// Result is the comparison on one device.
type Result struct {
	Device     string     `json:"device"`
	Conditions Conditions `json:"conditions"`
	// Mode is the mode of the AF_XDP sockets: zerocopy or copy.
	Mode      string     `json:"mode"`
	Datagrams Comparison `json:"datagrams"` // single ones
	Trains    Comparison `json:"trains"`
	Time      time.Time  `json:"time"`
	Version   string     `json:"version"` // ropewalk's
	Command   string     `json:"command"` // that measured
}

// The modes of AF_XDP sockets.
const (
	ZeroCopy = "zerocopy"
	Copy     = "copy"
)

// Comparison has the cost of one kind of traffic by each underlay.
type Comparison struct {
	UDP Cost `json:"udp"`
	XDP Cost `json:"xdp"`
}

// Cost is the throughput of a tunnel, and the CPU time of this host for a packet.
type Cost struct {
	Gbps        float64 `json:"gbps"` // payload, both directions together
	NsPerPacket float64 `json:"ns_per_packet"`
}

// Gains and losses up to these shares do not count: gain is worth a change, and noise is less than two runs differ by.
const (
	gain  = 0.05
	noise = 0.02
)

// Better reports whether AF_XDP is better for a kind of traffic: it carries more, or takes less CPU time, and neither is worse.
func (c *Comparison) Better() bool {
	more, less := c.XDP.Gbps/c.UDP.Gbps-1, 1-c.XDP.NsPerPacket/c.UDP.NsPerPacket
	return max(more, less) >= gain && min(more, less) >= -noise
}

// String returns the figures of AF_XDP relative to UDP sockets.
func (c *Comparison) String() string {
	return fmt.Sprintf("%.2f times the throughput, %.2f times the CPU", c.XDP.Gbps/c.UDP.Gbps, c.XDP.NsPerPacket/c.UDP.NsPerPacket)
}

// Better reports whether AF_XDP is better for both kinds of traffic. A daemon does not know which of them its tunnel will carry.
func (r *Result) Better() bool { return r.Datagrams.Better() && r.Trains.Better() }

// String returns the comparison in one line.
func (r *Result) String() string {
	return fmt.Sprintf("measured on %s (%s): AF_XDP has for single datagrams %v, for trains %v", r.Device, r.Mode, &r.Datagrams, &r.Trains)
}

// check returns an error for a Result that no measurement makes.
func (r *Result) check() error {
	if r.Mode != ZeroCopy && r.Mode != Copy {
		return fmt.Errorf("AF_XDP mode %q, want %s or %s", r.Mode, ZeroCopy, Copy)
	}
	for _, c := range []Comparison{r.Datagrams, r.Trains} {
		for _, v := range []float64{c.UDP.Gbps, c.UDP.NsPerPacket, c.XDP.Gbps, c.XDP.NsPerPacket} {
			if !(v > 0) || math.IsInf(v, 0) {
				return fmt.Errorf("figure %v, want a number above 0", v)
			}
		}
	}
	return nil
}
