// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// recall is how many of the last elements a datagram may join: flows whose packets alternate still make trains.
const recall = 8

// gatherer puts datagrams into elements, as UDP_GRO does: those of one flow and size in one, of which the last may be
// shorter. It keeps nothing from one call of a lane's Recv to the next, so that nothing waits for more to come.
type gatherer struct {
	scope uint32 // of link-local senders
	rx    []underlay.Datagrams
	count int // elements in use
	last  [recall]flow
}

// begin starts to fill rx. The scope is the index of the interface that link-local addresses are on.
func (g *gatherer) begin(rx []underlay.Datagrams, scope uint32) {
	g.rx, g.count, g.scope = rx, 0, scope
}

// room is how many more elements there are, and so how many datagrams surely fit.
func (g *gatherer) room() int { return len(g.rx) - g.count }

// add copies one datagram of a flow into an element. There must be room.
func (g *gatherer) add(f *flow, payload []byte) {
	// Only the flow's latest element may grow, or datagrams of one flow would overtake each other.
	for i := g.count - 1; i >= max(0, g.count-recall); i-- {
		if g.last[i%recall] == *f {
			if join(&g.rx[i], payload) {
				return
			}
			break
		}
	}
	d := &g.rx[g.count]
	d.N = copy(d.Buf, payload)
	d.SegSize = d.N
	d.Truncated = d.N < len(payload)
	d.From, d.ECN = f.endpoint(g.scope), f.ecn
	g.last[g.count%recall] = *f
	g.count++
}

// join appends a datagram to an element, if it fits in size and place.
func join(d *underlay.Datagrams, payload []byte) bool {
	n := len(payload)
	if n == 0 || n > d.SegSize || d.N%d.SegSize != 0 || d.N+n > len(d.Buf) || d.N >= underlay.MaxCoalesced*d.SegSize || d.Truncated {
		return false
	}
	d.N += copy(d.Buf[d.N:], payload)
	return true
}

// endpoint is where the datagrams of a flow come from.
func (f *flow) endpoint(scope uint32) (e underlay.Endpoint) {
	var src netip.Addr
	if f.v6 {
		src, e.Src = netip.AddrFrom16(f.src), netip.AddrFrom16(f.dst)
		if src.IsLinkLocalUnicast() {
			e.Scope = scope
		}
	} else {
		src, e.Src = netip.AddrFrom4([4]byte(f.src[:4])), netip.AddrFrom4([4]byte(f.dst[:4]))
	}
	e.Dst = netip.AddrPortFrom(src, f.port)
	return e
}
