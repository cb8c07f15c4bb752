// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/receive/order"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// noteFlow counts one packet of p in r.observed, which must not be nil. A packet that is not
// delivered was dropped.
func (r *Receiver) noteFlow(plain []byte, p *lane.Peer, e *order.Origin, delivered bool) {
	c := lane.CountFlow(r.observed, packet.FlowHash(plain), lane.FlowID{Peer: p, Flow: packet.FlowOf(plain)}, len(plain), r.now)
	c.Port = e.From.Dst.Port()
	if !delivered {
		c.Drops++
		return
	}
	c.Packets++
	c.Bytes += uint64(len(plain))
	if e.Mark {
		c.Marks++
	}
}

// noteUnopened counts n messages that the receive queue dropped, while flows are observed. Their inner flow is unknown.
func (r *Receiver) noteUnopened(e *element, n, bytes int) {
	table := r.lane.RxFlows.Take()
	if table == nil {
		return
	}
	port := e.From.Dst.Port()
	c := lane.CountFlow(table, uint32(port), lane.FlowID{Peer: e.flow.peer, Port: port}, bytes, r.now)
	c.Port = port
	c.Drops += uint64(n)
	r.lane.RxFlows.Put(table)
}
