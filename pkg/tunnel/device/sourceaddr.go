// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// Route is a route to an endpoint.
type Route struct {
	MTU   int    // bytes, 0 if unknown
	Links []int  // interface indexes of the next hops of packets with the endpoint's source address; nil if the host does not have it
	Hops  string // another text is another route; empty if unknown
}

// sourceRoute is how packets from a source address left when that was last looked up.
type sourceRoute struct {
	src   netip.Addr
	links []int
}

// route looks up the route to the peer. If packets from the peer's source address leave by other links than before, routing chooses the
// address again, as in the in-kernel WireGuard (send4, drivers/net/wireguard/socket.c). The caller holds mu.
func (p *Peer) route(to *underlay.Endpoint) Route {
	k := &p.mtu.known
	r := p.dev.routeTo(to)
	switch {
	case !to.Src.IsValid():
		k.from = nil
	case k.from == nil || k.from.src != to.Src:
		k.from = &sourceRoute{to.Src, r.Links}
	case !slices.Equal(k.from.links, r.Links):
		k.from = nil
		p.clearSource()
		r = p.dev.routeTo(p.engine.Endpoint.Load())
	}
	return r
}

// routeTo looks up the route of messages to an endpoint as the device sends them now: the zero Route without one.
func (d *Device) routeTo(to *underlay.Endpoint) Route { return d.cfg.Route(to, d.mark.Load()) }

// localPort returns the listen port, 0 while there is none. It needs no lock.
func (d *Device) localPort() uint16 {
	if port := d.port.Load(); port != nil {
		return port.LocalPort()
	}
	return 0
}

// sourceRouteKnown reports whether the next lookup finds out if packets from the peer's source address leave by other links. The caller
// holds mu.
func (p *Peer) sourceRouteKnown(now int64) bool {
	to, from := p.engine.Endpoint.Load(), p.mtu.known.from
	return to != nil && from != nil && from.src == to.Src && p.engine.Current.Load().Usable(now)
}

// clearSource lets routing choose the source address again: the present one may be why the peer does not answer. It needs no lock.
func (p *Peer) clearSource() {
	if to := p.engine.Endpoint.Load(); to != nil && to.Src.IsValid() {
		p.engine.Endpoint.CompareAndSwap(to, &underlay.Endpoint{Dst: to.Dst, Scope: to.Scope})
		p.noteChange()
	}
}
