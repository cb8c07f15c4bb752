// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Report is what a demo found, as `ropewalk demo --json` prints it.
type Report struct {
	OK      bool           `json:"ok"`
	Checks  []Check        `json:"checks"`
	Streams int            `json:"streams"`
	Ping    traffic.Result `json:"ping"`
	Runs    []Load         `json:"runs"`
	Cable   Cable          `json:"cable"`
	// QueueCount is how many queues the cable has.
	QueueCount int    `json:"queue_count"`
	Left       *Stats `json:"left"` // null when the daemon offers none
	Right      *Stats `json:"right"`
}

// Load is one load on the tunnel.
type Load struct {
	Spread string         `json:"spread"` // "spread off" or "spread on"; empty for a daemon that knows no spreading
	TCP    traffic.Result `json:"tcp"`    // over IPv4
	UDP    traffic.Result `json:"udp"`    // over IPv6
	// SourcePorts is from how many ports the left host sent data.
	SourcePorts int `json:"source_ports"`
	// Queues are those of the right host's end of the cable; null without eBPF.
	Queues []netlab.QueueCount `json:"queues"`
}

// packets is what all queues got, and the busiest one.
func (r *Load) packets() (sum, most uint64) {
	for _, q := range r.Queues {
		sum += q.Packets
		most = max(most, q.Packets)
	}
	return sum, most
}

// busy is how many queues got a hundredth of the packets or more: address resolution and handshakes have queues too.
func (r *Load) busy() (n int) {
	sum, _ := r.packets()
	for _, q := range r.Queues {
		if q.Packets > 0 && q.Packets*100 >= sum {
			n++
		}
	}
	return n
}

// Check is one thing that must be so.
type Check struct {
	OK   bool   `json:"ok"`
	What string `json:"what"`
	Why  string `json:"why"` // the figures behind it
}

// Stats is what the demo reads of the daemon's statistics.
type Stats struct {
	Lanes  []Lane               `json:"lanes"`
	Drops  map[string]uint64    `json:"drops"` // of the slow path
	Spread *config.SpreadReport `json:"spread,omitempty"`
}

// Lane is what one lane of the daemon has carried and dropped.
type Lane struct {
	TxPackets uint64            `json:"tx_packets"`
	TxTrains  uint64            `json:"tx_trains"`
	RxPackets uint64            `json:"rx_packets"`
	RxTrains  uint64            `json:"rx_trains"`
	Drops     map[string]uint64 `json:"drops"`
}

// judge fills in the checks.
func (r *Report) judge() {
	r.Checks = []Check{r.checkFlow(), r.checkIntegrity(), r.checkOrder(), r.checkEncrypted(), r.checkPlaintext()}
	for i := range r.Runs {
		if r.Runs[i].Spread == spreadOn {
			r.Checks = append(r.Checks, r.checkSpread(&r.Runs[i]))
		}
	}
	r.OK = !slices.ContainsFunc(r.Checks, func(c Check) bool { return !c.OK })
}

func (r *Report) checkFlow() Check {
	tcp, udp, idle, ok := 0, 0, 0, len(r.Runs) > 0
	for _, run := range r.Runs {
		tcp, udp = tcp+len(run.TCP.Streams), udp+len(run.UDP.Streams)
		ok = ok && len(run.TCP.Streams) > 0 && len(run.UDP.Streams) > 0
		for _, s := range slices.Concat(run.TCP.Streams, run.UDP.Streams) {
			if s.Bytes == 0 {
				idle++
			}
		}
	}
	return Check{
		OK:   ok && idle == 0,
		What: "traffic flowed in every stream",
		Why:  fmt.Sprintf("%d TCP and %d UDP streams, %d of them silent", tcp, udp, idle),
	}
}

func (r *Report) checkIntegrity() Check {
	var bytes, corrupt, lost uint64
	for _, run := range r.Runs {
		bytes += run.TCP.Bytes + run.UDP.Bytes
		corrupt += run.TCP.Corrupt + run.UDP.Corrupt
		lost += run.TCP.LostBytes
	}
	return Check{
		OK:   corrupt == 0 && lost == 0,
		What: "every byte was verified",
		Why:  fmt.Sprintf("%s, %d corrupt, %d bytes missing from TCP", term.WithUnit(float64(bytes), "B"), corrupt, lost),
	}
}

func (r *Report) checkOrder() Check {
	var packets, reordered, duplicated uint64
	for _, run := range r.Runs {
		packets += run.UDP.Packets
		reordered += run.UDP.Reordered
		duplicated += run.UDP.Duplicated
	}
	return Check{
		OK:   reordered == 0 && duplicated == 0,
		What: "no packet overtook another of its flow",
		Why:  fmt.Sprintf("%s datagrams, %d reordered, %d duplicated", term.Thousands(packets), reordered, duplicated),
	}
}

// manyStreams are so many that all their flows on one queue are no accident: 2^-15, with two queues.
const manyStreams = 8

// checkSpread asks for more than one port, and for more than one queue where there are enough flows to tell.
func (r *Report) checkSpread(run *Load) Check {
	// A flow that was silent for a while may take another port.
	why := fmt.Sprintf("%d flows took %d source ports, one at a time each", 2*r.Streams, run.SourcePorts)
	if len(run.Queues) > 0 {
		why += fmt.Sprintf(", to %d of %d queues", run.busy(), r.QueueCount)
	}
	telling := len(run.Queues) > 1 && r.Streams >= manyStreams
	return Check{
		OK:   run.SourcePorts > 1 && (run.busy() > 1 || !telling),
		What: "with spread on, the flows used more than one receive queue",
		Why:  why,
	}
}

func (r *Report) checkEncrypted() Check {
	c := r.Cable
	why := fmt.Sprintf("%s packets and trains captured, %d foreign", term.Thousands(c.seen()), c.Foreign)
	if c.Missed > 0 {
		why += fmt.Sprintf(", %s not captured", term.Thousands(c.Missed))
	}
	return Check{
		OK:   c.Foreign == 0 && c.Data > 0 && c.Handshake > 0,
		What: "the cable carried WireGuard and nothing else",
		Why:  why,
	}
}

func (r *Report) checkPlaintext() Check {
	return Check{
		OK:   r.Cable.Plaintext == 0,
		What: "no payload was seen in the clear",
		Why:  fmt.Sprintf("marker found %d times; a packet sent without the tunnel was caught", r.Cable.Plaintext),
	}
}

// Err names the checks that failed; it is nil if none did.
func (r *Report) Err() error {
	var errs []error
	for _, c := range r.Checks {
		if !c.OK {
			errs = append(errs, fmt.Errorf("the demo failed: not so: %s (%s)", c.What, c.Why))
		}
	}
	return errors.Join(errs...)
}

// dropLines names the drops of a side, one line per lane that has some.
func (s *Stats) dropLines(side string) []string {
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
			parts = append(parts, fmt.Sprintf("%s %s", reason, term.Thousands(drops[reason])))
		}
	}
	return strings.Join(parts, ", ")
}
