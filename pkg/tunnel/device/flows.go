// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
)

// FlowReport is the response to the control socket's flows request, in JSON. It has the addresses of users: only the control socket
// passes it on, never a metric or a log line.
type FlowReport struct {
	Interface string `json:"interface"`
	Lanes     int    `json:"lanes"`
	// Times are nanoseconds of one monotonic clock: of this report, and of the beginning of counting.
	Now   int64  `json:"now"`
	Since int64  `json:"since"`
	Flows []Flow `json:"flows"`
}

// Flow is one inner flow in one direction of one lane. Counters begin when the lane's table gets an entry for the flow.
type Flow struct {
	FlowID
	Lane      int    `json:"lane"` // FlowReport.Lanes for the slow path
	OuterPort uint16 `json:"outer_port"`
	Sprayed   int    `json:"sprayed,omitempty"` // sent flows: the number of source ports over which the flow is sprayed; absent for none
	Packets   uint64 `json:"packets"`
	Bytes     uint64 `json:"bytes"`
	Marks     uint64 `json:"marks"`
	Drops     uint64 `json:"drops"`
	First     int64  `json:"first"`
	Last      int64  `json:"last"`
}

// FlowID identifies a flow.
type FlowID struct {
	Direction string `json:"direction"`      // rx or tx
	Peer      string `json:"peer"`           // public key, base64
	Name      string `json:"name,omitempty"` // of the peer, for people
	// Protocol, Source and Destination are empty for messages that the receive queue dropped before they were opened.
	Protocol    string `json:"protocol"` // such as tcp, or a number
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// Flows returns the busiest flows of all lanes (engine.Engine.Flows).
func (d *Device) Flows() FlowReport {
	flows, since := d.engine.Flows()
	r := FlowReport{Interface: d.cfg.TUN.Name(), Lanes: d.engine.Lanes(), Now: d.clock(), Since: since, Flows: []Flow{}}
	peers := d.byEngine()
	port := d.port.Load()
	for i := range flows {
		f := &flows[i]
		p, ok := peers[f.Peer]
		if !ok { // the peer was removed
			continue
		}
		flow := flowOf(f, p)
		if !f.Received && port != nil {
			flow.OuterPort = port.Source(f.Source)
		}
		r.Flows = append(r.Flows, flow)
	}
	return r
}

// byEngine returns all peers by their part in the engine. It takes no lock that configuration holds for long.
func (d *Device) byEngine() map[*engine.Peer]*Peer {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	peers := make(map[*engine.Peer]*Peer, len(d.peers))
	for _, p := range d.peers {
		peers[p.engine] = p
	}
	return peers
}

func flowOf(f *engine.FlowStats, p *Peer) Flow {
	flow := Flow{
		FlowID: FlowID{Direction: "tx", Peer: p.key.Base64(), Name: p.nameText()}, Lane: f.Lane, OuterPort: f.Port, Sprayed: f.Sprayed,
		Packets: f.Packets, Bytes: f.Bytes, Marks: f.Marks, Drops: f.Drops, First: f.First, Last: f.Last,
	}
	if f.Received {
		flow.Direction = "rx"
	}
	if f.Flow.Source.IsValid() {
		flow.Protocol = f.Flow.Protocol.String()
		flow.Source, flow.Destination = endText(f.Flow.Source), endText(f.Flow.Destination)
	}
	return flow
}

// endText returns address and port, or the address of a flow without ports.
func endText(end netip.AddrPort) string {
	if end.Port() == 0 {
		return end.Addr().String()
	}
	return end.String()
}
