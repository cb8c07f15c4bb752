// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netlab"
	"github.com/ropewalk/ropewalk/pkg/traffic"
)

// demoReport is what the demo found, as --json prints it.
type demoReport struct {
	OK      bool           `json:"ok"`
	Checks  []demoCheck    `json:"checks"`
	Streams int            `json:"streams"`
	Ping    traffic.Result `json:"ping"`
	TCP     traffic.Result `json:"tcp"` // over IPv4
	UDP     traffic.Result `json:"udp"` // over IPv6
	Cable   demoCable      `json:"cable"`
	// QueueCount is how many queues the cable has.
	QueueCount int `json:"queue_count"`
	// Queues are those of the right host's end of the cable; null where eBPF is not to be had.
	Queues []netlab.QueueCount `json:"queues"`
	Left   *demoStats          `json:"left"` // null when the daemon offers none
	Right  *demoStats          `json:"right"`
}

// demoCheck is one thing that must be so.
type demoCheck struct {
	OK   bool   `json:"ok"`
	What string `json:"what"`
	Why  string `json:"why"` // the figures behind it
}

// demoStats is what the demo reads of the daemon's statistics.
type demoStats struct {
	Lanes []demoLane        `json:"lanes"`
	Drops map[string]uint64 `json:"drops"` // of the slow path
}

type demoLane struct {
	TxPackets uint64            `json:"tx_packets"`
	TxTrains  uint64            `json:"tx_trains"`
	RxPackets uint64            `json:"rx_packets"`
	RxTrains  uint64            `json:"rx_trains"`
	Drops     map[string]uint64 `json:"drops"`
}

// judge fills in the checks.
func (r *demoReport) judge() {
	r.Checks = []demoCheck{r.checkFlow(), r.checkIntegrity(), r.checkOrder(), r.checkEncrypted(), r.checkPlaintext()}
	r.OK = !slices.ContainsFunc(r.Checks, func(c demoCheck) bool { return !c.OK })
}

func (r *demoReport) checkFlow() demoCheck {
	idle := 0
	for _, s := range slices.Concat(r.TCP.Streams, r.UDP.Streams) {
		if s.Bytes == 0 {
			idle++
		}
	}
	return demoCheck{
		OK:   idle == 0 && len(r.TCP.Streams) > 0 && len(r.UDP.Streams) > 0,
		What: "traffic flowed in every stream",
		Why:  fmt.Sprintf("%d TCP and %d UDP streams, %d of them silent", len(r.TCP.Streams), len(r.UDP.Streams), idle),
	}
}

func (r *demoReport) checkIntegrity() demoCheck {
	corrupt := r.TCP.Corrupt + r.UDP.Corrupt
	return demoCheck{
		OK:   corrupt == 0 && r.TCP.LostBytes == 0,
		What: "every byte was verified",
		Why: fmt.Sprintf("%s, %d corrupt, %d bytes missing from TCP", withUnit(float64(r.TCP.Bytes+r.UDP.Bytes), "B"),
			corrupt, r.TCP.LostBytes),
	}
}

func (r *demoReport) checkOrder() demoCheck {
	return demoCheck{
		OK:   r.UDP.Reordered == 0 && r.UDP.Duplicated == 0,
		What: "no packet overtook another of its flow",
		Why: fmt.Sprintf("%s datagrams, %d reordered, %d duplicated", thousands(r.UDP.Packets), r.UDP.Reordered,
			r.UDP.Duplicated),
	}
}

func (r *demoReport) checkEncrypted() demoCheck {
	c := r.Cable
	why := fmt.Sprintf("%s packets and trains captured, %d foreign", thousands(c.seen()), c.Foreign)
	if c.Missed > 0 {
		why += fmt.Sprintf(", %s not captured", thousands(c.Missed))
	}
	return demoCheck{
		OK:   c.Foreign == 0 && c.Data > 0 && c.Handshake > 0,
		What: "the cable carried WireGuard and nothing else",
		Why:  why,
	}
}

func (r *demoReport) checkPlaintext() demoCheck {
	return demoCheck{
		OK:   r.Cable.Plaintext == 0,
		What: "no payload was seen in the clear",
		Why:  fmt.Sprintf("marker found %d times; a packet sent without the tunnel was caught", r.Cable.Plaintext),
	}
}

// err names the checks that failed.
func (r *demoReport) err() error {
	var errs []error
	for _, c := range r.Checks {
		if !c.OK {
			errs = append(errs, fmt.Errorf("the demo failed: not so: %s (%s)", c.What, c.Why))
		}
	}
	return errors.Join(errs...)
}

// dropLines names the drops of a side, one line per lane that has some.
func (s *demoStats) dropLines(side string) []string {
	var lines []string
	for i, l := range s.Lanes {
		if text := dropText(l.Drops); text != "" {
			lines = append(lines, fmt.Sprintf("%-5s lane %-3d %s", side, i, text))
		}
	}
	if text := dropText(s.Drops); text != "" {
		lines = append(lines, fmt.Sprintf("%-5s control  %s", side, text))
	}
	return lines
}

func dropText(drops map[string]uint64) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(drops)) {
		if drops[reason] > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", reason, thousands(drops[reason])))
		}
	}
	return strings.Join(parts, ", ")
}
