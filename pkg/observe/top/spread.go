// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// SpreadFrame holds the flows, ports and rates of a device of `ropewalk spread attach` between two samples. Every number in it is
// finite. `ropewalk flows DEVICE` and `ropewalk top DEVICE` print it.
type SpreadFrame struct {
	Device  string            `json:"device"`
	Seconds float64           `json:"seconds"` // over which rates were measured; 0 for a single sample, without rates
	Flows   []spreader.Flow   `json:"flows"`
	Peers   []PeerRate        `json:"peers"` // only peers that exchange messages
	Ports   []PortLoad        `json:"ports"`
	Rates   []CounterRate     `json:"rates"` // of counters that have grown
	Refused *RefusedDatagrams `json:"refused,omitempty"`
}

// PeerRate is the traffic of one peer, as its WireGuard counts it.
type PeerRate struct {
	Tunnel    string         `json:"tunnel"`
	Peer      netip.AddrPort `json:"peer"`
	PublicKey string         `json:"public_key"`
	Received  float64        `json:"received_bytes_per_second"`
	Sent      float64        `json:"sent_bytes_per_second"`
}

// PortLoad is one source port towards one peer.
type PortLoad struct {
	Tunnel string         `json:"tunnel"`
	Peer   netip.AddrPort `json:"peer"`
	Port   uint16         `json:"port"`
	Load   uint64         `json:"load"`  // bytes sent recently: halved every 134 ms
	Share  float64        `json:"share"` // of the peer's load
	Flows  *int           `json:"flows,omitempty"`
	// State is the reason why messages keep the listen port; empty while the port is in use. It is
	// "paused", "held" for a peer that did not answer, or "blocked" for a port from which it does
	// not answer probes.
	State string `json:"state,omitempty"`
}

// CounterRate is the rate of one event counter.
type CounterRate struct {
	Name string  `json:"name"`
	Rate float64 `json:"per_second"`
	Help string  `json:"help"`
}

// RefusedDatagrams compares the datagrams that arrived for the tunnels of a device with the
// datagrams that their WireGuard accepted.
type RefusedDatagrams struct {
	Received float64 `json:"received_per_second"`
	Accepted float64 `json:"accepted_per_second"`
}

// CompareSpread returns the state of a device at the later sample. before is nil if there is none.
func CompareSpread(before, now *spreader.DeviceFlows) *SpreadFrame {
	if before == nil {
		before = &spreader.DeviceFlows{At: now.At}
	}
	c := comparison{seconds: max(now.At.Sub(before.At).Seconds(), 0)}
	f := &SpreadFrame{
		Device: now.Device, Seconds: c.seconds, Flows: now.Flows, Peers: c.peerRates(before, now), Ports: portLoads(now),
		Rates: c.counterRates(before, now), Refused: c.refused(before, now),
	}
	f.Sort(ByDefault, false)
	return f
}

// Only removes the rows of peers whose endpoint does not begin with a text.
func (f *SpreadFrame) Only(endpoint string) {
	f.Peers = slices.DeleteFunc(f.Peers, func(p PeerRate) bool { return !strings.HasPrefix(p.Peer.String(), endpoint) })
	f.Ports = slices.DeleteFunc(f.Ports, func(p PortLoad) bool { return !strings.HasPrefix(p.Peer.String(), endpoint) })
}

// Sort sorts peers and ports, by traffic by default. Ties are broken by endpoint and port, so that rows do not jump.
func (f *SpreadFrame) Sort(o Order, reverse bool) {
	o = cmp.Or(o, ByRate)
	slices.SortFunc(f.Peers, func(a, b PeerRate) int {
		return cmp.Or(reverseIf(o.compare(a.keys(), b.keys()), reverse), ByName.compare(a.keys(), b.keys()))
	})
	slices.SortFunc(f.Ports, func(a, b PortLoad) int {
		return cmp.Or(reverseIf(o.compare(a.keys(), b.keys()), reverse), ByName.compare(a.keys(), b.keys()))
	})
}

func (p *PeerRate) keys() keys {
	return keys{rate: p.Received + p.Sent, received: p.Received, sent: p.Sent, name: p.Tunnel + " " + p.Peer.String() + " " + p.PublicKey}
}

func (p *PortLoad) keys() keys {
	return keys{rate: float64(p.Load), sent: float64(p.Load), name: p.Tunnel + " " + p.Peer.String(), number: int(p.Port)}
}

// peerRates returns the peers that exchange messages.
func (c *comparison) peerRates(before, now *spreader.DeviceFlows) []PeerRate {
	was := map[string]spreader.PeerStatus{}
	for _, t := range before.Tunnels {
		for _, p := range t.Peers {
			was[t.Name+p.PublicKey] = p
		}
	}
	rates := []PeerRate{}
	for _, t := range now.Tunnels {
		for _, p := range t.Peers {
			old, known := was[t.Name+p.PublicKey]
			if !known || p.PublicKey == "" || p.ReceivedBytes < old.ReceivedBytes || p.SentBytes < old.SentBytes {
				continue // without counters, or configured anew
			}
			received, sent := p.ReceivedBytes-old.ReceivedBytes, p.SentBytes-old.SentBytes
			if received+sent > 0 {
				rates = append(rates, PeerRate{t.Name, p.Endpoint, p.PublicKey, c.rate(float64(received)), c.rate(float64(sent))})
			}
		}
	}
	return rates
}

// portLoads returns the ports of all peers.
func portLoads(f *spreader.DeviceFlows) []PortLoad {
	loads, peers := []PortLoad{}, 0
	for _, t := range f.Tunnels {
		peers += len(t.Peers)
	}
	for _, t := range f.Tunnels {
		for i := range t.Peers {
			p := &t.Peers[i]
			for lane, l := range p.Lanes {
				row := PortLoad{Tunnel: t.Name, Peer: p.Endpoint, Port: l.Port, Load: l.Load, Share: l.Share, State: portState(f, p, l.Port)}
				if peers == 1 { // the flow table does not name the peer
					n := flowsOfLane(f.Flows, lane, len(p.Lanes))
					row.Flows = &n
				}
				loads = append(loads, row)
			}
		}
	}
	return loads
}

func portState(f *spreader.DeviceFlows, p *spreader.PeerStatus, port uint16) string {
	switch {
	case f.Paused || p.Paused:
		return "paused"
	case !p.Ready:
		return "held"
	case slices.Contains(p.Blocked, port):
		return "blocked"
	}
	return ""
}

func flowsOfLane(flows []spreader.Flow, lane, lanes int) (n int) {
	for i := range flows {
		if flows[i].Lane%lanes == lane {
			n++
		}
	}
	return n
}

// counterRates returns the counters that have grown.
func (c *comparison) counterRates(before, now *spreader.DeviceFlows) []CounterRate {
	rates := []CounterRate{}
	for i, n := range now.Counters {
		if i < len(before.Counters) && n.Count > before.Counters[i].Count {
			rates = append(rates, CounterRate{n.Name, c.rate(float64(n.Count - before.Counters[i].Count)), n.Help})
		}
	}
	return rates
}

// refused returns nil if the kernel does not count accepted datagrams, or if at least as many were
// accepted as arrived.
func (c *comparison) refused(before, now *spreader.DeviceFlows) *RefusedDatagrams {
	was, known := acceptedBy(before)
	is, stillKnown := acceptedBy(now)
	arrived, arrives := sumOf(before.Queues), sumOf(now.Queues)
	if !known || !stillKnown || is < was || arrives < arrived || arrives-arrived <= is-was {
		return nil
	}
	return &RefusedDatagrams{c.rate(float64(arrives - arrived)), c.rate(float64(is - was))}
}

func acceptedBy(f *spreader.DeviceFlows) (sum uint64, known bool) {
	for _, t := range f.Tunnels {
		if t.Interface == nil {
			return 0, false
		}
		sum += t.Interface.RxPackets
	}
	return sum, len(f.Tunnels) > 0
}

func sumOf(counts []uint64) (sum uint64) {
	for _, n := range counts {
		sum += n
	}
	return sum
}
