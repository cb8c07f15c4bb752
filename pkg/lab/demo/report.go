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

// Report is the result of a demo, as `ropewalk demo --json` prints it.
type Report struct {
	OK      bool           `json:"ok"`
	Checks  []Check        `json:"checks"`
	Streams int            `json:"streams"`
	Ping    traffic.Result `json:"ping"`
	Runs    []Load         `json:"runs"`
	Cable   Cable          `json:"cable"`
	// QueueCount is the number of queues of the cable.
	QueueCount int    `json:"queue_count"`
	Left       *Stats `json:"left"` // null if the daemon has no statistics
	Right      *Stats `json:"right"`
}

// Load is the result of one load on the tunnel.
type Load struct {
	Spread string         `json:"spread"` // "spread off" or "spread on"; empty if the daemon does not support spread
	TCP    traffic.Result `json:"tcp"`    // over IPv4
	UDP    traffic.Result `json:"udp"`    // over IPv6
	// SourcePorts is the number of source ports from which the left host sent data.
	SourcePorts int `json:"source_ports"`
	// Queues are the receive queues of the right host; null without eBPF.
	Queues []netlab.QueueCount `json:"queues"`
}

// packets returns the packets of all queues, and the packets of the busiest queue.
func (r *Load) packets() (sum, most uint64) {
	for _, q := range r.Queues {
		sum += q.Packets
		most = max(most, q.Packets)
	}
	return sum, most
}

// usedQueues returns the number of queues with at least a hundredth of the packets. Neighbour discovery and handshakes may use
// other queues.
func (r *Load) usedQueues() (n int) {
	sum, _ := r.packets()
	for _, q := range r.Queues {
		if q.Packets > 0 && q.Packets*100 >= sum {
			n++
		}
	}
	return n
}

// Check is the result of one check.
type Check struct {
	OK   bool   `json:"ok"`
	What string `json:"what"`
	Why  string `json:"why"` // details, with figures
}

// Stats is the part of the daemon's statistics that the demo reads.
type Stats struct {
	Lanes  []Lane               `json:"lanes"`
	Drops  map[string]uint64    `json:"drops"` // of the slow path
	Spread *config.SpreadReport `json:"spread,omitempty"`
}

// Lane has the statistics of one lane.
type Lane struct {
	TxPackets uint64            `json:"tx_packets"`
	TxTrains  uint64            `json:"tx_trains"`
	RxPackets uint64            `json:"rx_packets"`
	RxTrains  uint64            `json:"rx_trains"`
	Drops     map[string]uint64 `json:"drops"`
}

// runChecks evaluates all checks.
func (r *Report) runChecks() {
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
		What: "every stream carried data",
		Why:  fmt.Sprintf("%d TCP and %d UDP streams, %d of them without data", tcp, udp, idle),
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
		What: "all data arrived unchanged",
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
		What: "no datagram was reordered or duplicated",
		Why:  fmt.Sprintf("%s datagrams, %d reordered, %d duplicated", term.Thousands(packets), reordered, duplicated),
	}
}

// minStreams is the number of streams from which checkSpread requires two queues. With two queues, all flows share one by chance in
// 1 of 2^15 runs.
const minStreams = 8

// checkSpread requires several source ports, and several queues if there are enough flows.
func (r *Report) checkSpread(run *Load) Check {
	// A flow may change its port after a pause, so there may be more ports than flows.
	why := fmt.Sprintf("%d flows used %d source ports", 2*r.Streams, run.SourcePorts)
	if len(run.Queues) > 0 {
		why += fmt.Sprintf(", to %d of %d queues", run.usedQueues(), r.QueueCount)
	}
	enoughFlows := len(run.Queues) > 1 && r.Streams >= minStreams
	return Check{
		OK:   run.SourcePorts > 1 && (run.usedQueues() > 1 || !enoughFlows),
		What: "with spread on, the flows used more than one receive queue",
		Why:  why,
	}
}

func (r *Report) checkEncrypted() Check {
	c := r.Cable
	why := fmt.Sprintf("%s packets captured, %d of other protocols", term.Thousands(c.seen()), c.Foreign)
	if c.Missed > 0 {
		why += fmt.Sprintf(", %s not captured", term.Thousands(c.Missed))
	}
	return Check{
		OK:   c.Foreign == 0 && c.Data > 0 && c.Handshake > 0,
		What: "the cable carried only WireGuard messages",
		Why:  why,
	}
}

func (r *Report) checkPlaintext() Check {
	return Check{
		OK:   r.Cable.Plaintext == 0,
		What: "no plaintext was captured",
		Why:  fmt.Sprintf("test pattern found in %d packets (and in an unencrypted test packet)", r.Cable.Plaintext),
	}
}

// Err returns an error with all failed checks, or nil.
func (r *Report) Err() error {
	var errs []error
	for _, c := range r.Checks {
		if !c.OK {
			errs = append(errs, fmt.Errorf("check failed: %s (%s)", c.What, c.Why))
		}
	}
	return errors.Join(errs...)
}

// dropLines returns the drops of a host, one line per lane with drops.
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
