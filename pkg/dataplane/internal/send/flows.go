// SPDX-License-Identifier: Apache-2.0

package send

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// noteFlow counts the parsed train to p, without the first skip packets, while flows are observed.
func (t *Transmitter) noteFlow(p *lane.Peer, source, skip int) {
	table := t.out.lane.TxFlows.Take()
	if table == nil {
		return
	}
	n := t.train.Segments() - skip
	bytes := (n-1)*t.train.SegmentLen() + t.train.LastLen()
	c := lane.CountFlow(table, t.train.FlowHash(), lane.FlowID{Peer: p, Flow: t.train.Flow()}, bytes, t.out.now)
	c.Packets += uint64(n)
	c.Bytes += uint64(bytes)
	c.Source, c.Sprayed = source, 0
	if t.stream != nil {
		c.Sprayed = t.stream.ports()
	}
	t.out.lane.TxFlows.Put(table)
}

// noteRefused is noteFlow for a train that is dropped.
func (t *Transmitter) noteRefused(p *lane.Peer, source, skip int) {
	table := t.out.lane.TxFlows.Take()
	if table == nil {
		return
	}
	c := lane.CountFlow(table, t.train.FlowHash(), lane.FlowID{Peer: p, Flow: t.train.Flow()}, 0, t.out.now)
	c.Drops += uint64(t.train.Segments() - skip)
	c.Source = source
	t.out.lane.TxFlows.Put(table)
}

// noteQueued counts marks and drops of a train that has waited in a queue, while flows are observed.
func (t *Transmitter) noteQueued(p *lane.Peer, source int, train []byte, marks, drops int) {
	table := t.out.lane.TxFlows.Take()
	if table == nil {
		return
	}
	ip := train[offload.VnetHdrLen:]
	c := lane.CountFlow(table, packet.FlowHash(ip), lane.FlowID{Peer: p, Flow: packet.FlowOf(ip)}, 0, t.out.now)
	c.Marks += uint64(marks)
	c.Drops += uint64(drops)
	c.Source = source
	t.out.lane.TxFlows.Put(table)
}
