// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// maxOpenElements is the number of recent elements that a datagram may join. Flows whose packets alternate still form
// trains.
const maxOpenElements = 8

// gatherer puts datagrams into elements, as UDP_GRO does. Datagrams of one flow and size share an
// element, and the last may be shorter. It keeps no state between two calls of a lane's Recv, so
// no datagram waits for further ones.
type gatherer struct {
	scope uint32 // interface index of link-local senders
	rx    []underlay.Datagrams
	count int // elements in use
	last  [maxOpenElements]flow
}

// begin starts to fill rx. The scope is the index of the interface on which link-local addresses are valid.
func (g *gatherer) begin(rx []underlay.Datagrams, scope uint32) {
	g.rx, g.count, g.scope = rx, 0, scope
}

// room returns the number of unused elements. At least as many datagrams fit.
func (g *gatherer) room() int { return len(g.rx) - g.count }

// add copies one datagram of a flow into an element. There must be room.
func (g *gatherer) add(f *flow, payload []byte) {
	// Only the flow's latest element may grow; otherwise datagrams of one flow would overtake each other.
	for i := g.count - 1; i >= max(0, g.count-maxOpenElements); i-- {
		if g.last[i%maxOpenElements] == *f {
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
	g.last[g.count%maxOpenElements] = *f
	g.count++
}

// join appends a datagram to an element, if its size permits and it fits.
func join(d *underlay.Datagrams, payload []byte) bool {
	n := len(payload)
	if n == 0 || n > d.SegSize || d.N%d.SegSize != 0 || d.N+n > len(d.Buf) || d.N >= underlay.MaxCoalesced*d.SegSize || d.Truncated {
		return false
	}
	d.N += copy(d.Buf[d.N:], payload)
	return true
}

// endpoint returns the sender of a flow's datagrams, with the local address as Src.
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
