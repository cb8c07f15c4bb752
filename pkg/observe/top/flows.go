// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// InnerFlow is one inner flow in one direction of one lane, with its rates between two reports.
type InnerFlow struct {
	device.FlowID
	Lane       string  `json:"lane"`              // 0, 1, … or slow
	OuterPort  uint16  `json:"outer_port"`        // the source port of its messages: this host's for tx, the peer's for rx
	Sprayed    int     `json:"sprayed,omitempty"` // tx: the number of source ports over which the flow is sprayed, OuterPort among them
	ByteRate   float64 `json:"bytes_per_second"`
	PacketRate float64 `json:"packets_per_second"`
	DropRate   float64 `json:"drops_per_second"`
	Age        float64 `json:"age_seconds"`  // since the daemon first counted it
	Idle       float64 `json:"idle_seconds"` // since its last packet
	Bytes      uint64  `json:"bytes"`        // since then
	Packets    uint64  `json:"packets"`
	Marks      uint64  `json:"marks"` // packets that the lane's queue marked as congested (ECN CE)
	Drops      uint64  `json:"drops"` // packets that the lane's queue dropped
}

// flowPlace identifies a row: a flow may have several, if its lane or port has changed.
type flowPlace struct {
	device.FlowID
	lane int
	port uint16 // of messages that were not opened
}

func placeOf(f *device.Flow) flowPlace {
	p := flowPlace{FlowID: f.FlowID, lane: f.Lane}
	if f.Protocol == "" {
		p.port = f.OuterPort
	}
	return p
}

// CompareFlows returns the flows of the later report. before may be nil. If counting began after before, rates are those since then.
func CompareFlows(before, now *device.FlowReport) []InnerFlow {
	if before == nil || before.Since != now.Since || before.Interface != now.Interface {
		before = &device.FlowReport{Now: now.Since}
	}
	was := make(map[flowPlace]*device.Flow, len(before.Flows))
	for i := range before.Flows {
		was[placeOf(&before.Flows[i])] = &before.Flows[i]
	}
	c := comparison{seconds: seconds(now.Now - before.Now)}
	flows := make([]InnerFlow, len(now.Flows))
	for i := range now.Flows {
		f := &now.Flows[i]
		old := was[placeOf(f)]
		if old == nil || old.First != f.First { // it has lost its entry in between
			old = new(device.Flow)
		}
		flows[i] = InnerFlow{
			FlowID: f.FlowID, Lane: strconv.Itoa(f.Lane), OuterPort: f.OuterPort, Sprayed: f.Sprayed,
			ByteRate: c.rate(delta(old.Bytes, f.Bytes)), PacketRate: c.rate(delta(old.Packets, f.Packets)),
			DropRate: c.rate(delta(old.Drops, f.Drops)), Age: seconds(now.Now - f.First), Idle: seconds(now.Now - f.Last),
			Bytes: f.Bytes, Packets: f.Packets, Marks: f.Marks, Drops: f.Drops,
		}
		if f.Lane == now.Lanes {
			flows[i].Lane = slowLane
		}
	}
	return flows
}

// seconds converts nanoseconds; it returns 0 for negative ones.
func seconds(ns int64) float64 { return float64(max(ns, 0)) / 1e9 }

// FlowOrders returns the names of the orders of SortFlows.
func FlowOrders() []string { return []string{"rate", "age", "drops"} }

// SortFlows sorts flows by one of FlowOrders: the highest rate, the oldest or the most drops first.
func SortFlows(flows []InnerFlow, order string) {
	slices.SortStableFunc(flows, func(a, b InnerFlow) int {
		c := 0
		switch order {
		case "age":
			c = cmp.Compare(b.Age, a.Age)
		case "drops":
			c = cmp.Or(cmp.Compare(b.DropRate, a.DropRate), cmp.Compare(b.Drops, a.Drops))
		}
		return cmp.Or(c, cmp.Compare(b.ByteRate, a.ByteRate), a.compareID(&b))
	})
}

// compareID breaks ties, so that rows do not jump.
func (f *InnerFlow) compareID(o *InnerFlow) int {
	return cmp.Or(
		cmp.Compare(f.Source, o.Source), cmp.Compare(f.Destination, o.Destination), cmp.Compare(f.Protocol, o.Protocol),
		cmp.Compare(f.Direction, o.Direction), cmp.Compare(f.Lane, o.Lane), cmp.Compare(f.OuterPort, o.OuterPort),
	)
}

// RenderFlows draws flows as a table of any number of lines. Options gives its width and style.
func RenderFlows(flows []InnerFlow, o Options) string {
	r := renderer{Options: o}
	return r.paint(r.lines(flowTable(flows, o)))
}

// unopened stands for the ends of messages that were dropped before they were opened.
const unopened = "(not opened)"

// flowTable returns the table of flows.
func flowTable(flows []InnerFlow, o Options) *table {
	r := renderer{Options: o}
	t := r.table(
		"no flows: the daemon counts them from the first request on",
		column{title: "DIR"}, column{title: "RATE", rate: true}, column{title: "pps", rank: 6, right: true}, column{title: "PROTO", rank: 5},
		column{title: "SOURCE"}, column{title: "DESTINATION"}, column{title: "PORT", rank: 2, right: true}, column{title: "LANE", rank: 4},
		column{title: "AGE", rank: 7, right: true}, column{title: "IDLE", rank: 8, right: true},
		column{title: "MARKS", rank: 3, right: true}, column{title: "DROPS", rank: 3, right: true}, column{title: "PEER", rank: 1},
	)
	for i := range flows {
		f := &flows[i]
		source := term.Clean(f.Source)
		if f.Protocol == "" {
			source = unopened
		}
		key := peerText(f.Peer, f.Name, o.Width >= wideFlows)
		t.rows = append(t.rows, []cell{
			text(term.Clean(f.Direction)), text(bits(f.ByteRate)), text(count(f.PacketRate)), text(term.Clean(f.Protocol)),
			text(source), text(term.Clean(f.Destination)), orDash(f.OuterPort != 0, f.portText()), text(term.Clean(f.Lane)),
			text(ageText(f.Age)), text(idleText(f.Idle)),
			text(count(float64(f.Marks))),
			{text: count(float64(f.Drops)), style: nonzeroStyle(f.DropRate)},
			text(key),
		})
	}
	return t
}

// portText returns the port, and how many more a sprayed flow has.
func (f *InnerFlow) portText() string {
	port := strconv.Itoa(int(f.OuterPort))
	if f.Sprayed > 1 {
		port += "+" + strconv.Itoa(f.Sprayed-1)
	}
	return port
}

// wideFlows is the smallest width for full public keys.
const wideFlows = 180

// idleText is the age of the last packet, a dash for a flow that is sending.
func idleText(seconds float64) string {
	if seconds < 1 {
		return "-"
	}
	return ageText(seconds)
}
