// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/probe"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pathmtu"
)

// pathMTU is the knowledge of the path MTU of one peer, besides the findings of the prober. Peer.mu
// guards all but reported and refused.
type pathMTU struct {
	peer     *Peer
	reported atomic.Uint64 // the size of an ICMP error in bytes, and in the low 16 bits the quoted source port; 0 for none
	refused  atomic.Uint64 // the size in bytes of a message that the host refused, 0 for none
	known    pathmtu.Limits
	overhead int // of the outer packets, in bytes
	max      int // the size of the largest packet that data can have
	logged   int // the limit of inner packets that was logged last, 0 for none
}

// update starts the search when it becomes possible, and restarts it if it does not know the present largest size. The caller holds mu.
func (m *pathMTU) update(now int64) {
	p := m.peer
	to, mtu := p.engine.Endpoint.Load(), int(p.dev.mtu.Load())
	p.probing.limitTrains()
	if to == nil || mtu <= 0 {
		m.stop()
		return
	}
	sizes := probeSizes(mtu, to)
	changed := m.max != sizes.Max || m.overhead != sizes.Offset
	m.max, m.overhead = sizes.Max, sizes.Offset
	switch off := p.dev.spreading.Load().mode == config.SpreadOff; { // then neither side accepts hellos
	case off || !p.running || !p.hello.exchange.Remote.Probes:
		p.probing.stop()
	case changed || !p.probing.active():
		p.probing.get().Start(now, sizes)
	}
	if p.probing.active() {
		p.probing.prober.EnableTrains(p.dev.outer.trainLimiter() != nil)
	}
	m.apply()
}

// probeSizes returns the sizes to try for a TUN of the given MTU.
func probeSizes(mtu int, to *underlay.Endpoint) probe.Sizes {
	s := probe.Sizes{Floor: probe.BaseSize, Offset: packet.IPv6HeaderLen, Step: wire.PaddingMultiple}
	if to.Dst.Addr().Is4() {
		s.Floor, s.Offset = probe.FloorIPv4, packet.IPv4HeaderLen
	}
	s.Max = min(s.Offset+packet.UDPHeaderLen+wire.DataOverhead+mtu, s.Offset+packet.UDPHeaderLen+underlay.MaxDatagramRun)
	s.Offset += packet.UDPHeaderLen + wire.DataOverhead
	s.Floor = min(s.Floor, s.Max)
	return s
}

// saved returns the limit of the last search for the next device, 0 for none. The caller holds mu.
func (m *pathMTU) saved() uint16 {
	p := m.peer
	if p.probing.prober == nil {
		return 0
	}
	limit, _ := p.probing.prober.Limit()
	if limit >= m.max {
		return 0
	}
	return uint16(limit)
}

// stop ends the search. The next one begins with its limit. The caller holds mu.
func (m *pathMTU) stop() {
	m.peer.probing.stop()
	m.apply()
}

// apply passes the limit for inner packets to the lanes. The caller holds mu.
func (m *pathMTU) apply() {
	limit, state := m.limit()
	inner := m.innerLimit(limit)
	m.peer.engine.SetPathMTU(inner)
	if final := state != config.PathMTUSearching && state != config.PathMTUUnknown; final && inner != m.logged {
		m.logged = inner
		m.logLimit()
	}
}

// logLimit logs the limit of inner packets. There may be thousands of such peers. The caller holds mu.
func (m *pathMTU) logLimit() {
	p := m.peer
	level := p.dev.pathMTULog.Level(p.dev.clock(), slog.LevelInfo)
	r := m.report()
	log := p.log().With("peer", p.key, "path_mtu", r.Bytes, "inner_mtu", r.InnerBytes, "state", r.State)
	if r.InnerBytes == 0 {
		log.Log(context.Background(), level, "path MTU no longer limits packets to peer")
		return
	}
	log.Log(context.Background(), level, "path MTU limits packets to peer, larger ones are fragmented or answered with ICMP errors")
}

// limit returns the size that data may have, 0 if it is not known, and how it is known. The caller holds mu.
func (m *pathMTU) limit() (limit int, state config.PathMTUState) {
	p := m.peer
	state = config.PathMTUUnknown
	if p.probing.active() {
		var proven bool
		limit, proven = p.probing.prober.Limit()
		state = searchState(p.probing.prober.State(), proven)
	}
	if !p.dev.outer.sendsFragments() {
		limit, state = m.known.Apply(limit, state)
	}
	return limit, state
}

// innerLimit returns the size of the largest inner packet that fits in an outer packet of size limit, 0 for no limit. Padding may enlarge a packet up
// to the TUN's MTU, so the limit is a multiple of the padding.
func (m *pathMTU) innerLimit(limit int) int {
	if limit == 0 || limit >= m.max {
		return 0
	}
	return max((limit-m.overhead)&^(wire.PaddingMultiple-1), wire.PaddingMultiple)
}

// report returns the path MTU for people. The caller holds mu.
func (m *pathMTU) report() config.PathMTU {
	limit, state := m.limit()
	return config.PathMTU{Bytes: limit, InnerBytes: m.innerLimit(limit), State: state}
}

// searchState returns the state of a search for people. proven says that its limit is.
func searchState(s probe.State, proven bool) config.PathMTUState {
	switch {
	case s == probe.Unreachable:
		return config.PathMTUUnreachable
	case proven && (s == probe.Complete || s == probe.Raising):
		return config.PathMTUConfirmed
	}
	return config.PathMTUSearching
}

// lookUpRoute looks up the route to a peer with a session, or whose route leads into the tunnel. If
// it has just done that, the timer calls it again. The caller holds mu.
func (m *pathMTU) lookUpRoute(now int64) {
	p, k := m.peer, &m.known
	to := p.engine.Endpoint.Load()
	k.Cancel()
	if to == nil || p.dev.cfg.Route == nil || !p.engine.Current.Load().Usable(now) && !p.location.isLooping() || !k.LookUp(now, &p.dev.routeTurns) {
		return
	}
	m.update(now) // for the overhead
	p.probing.retestTrains()
	r := m.lookUp(to)
	p.location.checkLoop(p.engine.Endpoint.Load())
	m.setRoute(r)
	if size := int(m.refused.Swap(0)); size > 0 && !p.location.isLooping() {
		k.Refuse(int32(size+m.overhead-wire.DataOverhead), now)
	}
	m.update(now)
}

// setRoute applies the route. The caller holds mu.
func (m *pathMTU) setRoute(r Route) {
	p := m.peer
	if p.location.isLooping() {
		r.MTU = 0 // the tunnel's own
	}
	c := m.known.SetRoute(int32(r.MTU), r.Hops)
	if c.Other {
		m.reported.Store(0)
	}
	if port := p.dev.outer.port.Load(); port != nil && c.Grown {
		port.RoutesChanged()
	}
	if c.Search {
		p.probing.stop()
	}
}

// runTimer does what is due. The caller holds mu.
func (m *pathMTU) runTimer(now int64) {
	if m.known.LookUpDue(now) {
		m.lookUpRoute(now)
	}
	if m.known.Expire(now) {
		m.apply()
	}
}

// takeReported applies the size of an ICMP error. The caller holds mu.
func (m *pathMTU) takeReported(now int64) {
	p, r := m.peer, m.reported.Swap(0)
	if r == 0 {
		return
	}
	path := 1 + slices.Index(p.probing.ports(), uint16(r)) // as the prober numbers paths: 0 for the listen port
	m.known.Report(int32(r>>16), path, now)
	m.update(now)
	if p.probing.active() {
		p.probing.prober.Confirm(now, path)
	}
}

// forget discards the limits that are known without probes: the path is another one. The caller holds mu.
func (m *pathMTU) forget() {
	m.known.Forget()
	m.forgetReports()
}

// forgetReports discards reports that wait to be applied: they concern another endpoint. The caller holds mu.
func (m *pathMTU) forgetReports() {
	m.known.ForgetLinks()
	m.reported.Store(0)
	m.refused.Store(0)
}

// Route is a route to an endpoint.
type Route struct {
	MTU   int    // bytes, 0 if unknown
	Links []int  // interface indexes of the next hops of packets with the endpoint's source address; nil if the host does not have it
	Hops  string // another text is another route; empty if unknown
}

// lookUp looks up the route to the peer. If packets from the peer's source address leave by other links than before, routing chooses the
// address again, as in the in-kernel WireGuard (send4, drivers/net/wireguard/socket.c). The caller holds mu.
func (m *pathMTU) lookUp(to *underlay.Endpoint) Route {
	p := m.peer
	r := p.dev.outer.routeTo(to)
	if m.known.SetLinks(to.Src, r.Links) {
		p.location.clearSource()
		r = p.dev.outer.routeTo(p.engine.Endpoint.Load())
	}
	return r
}

// sourceRouteKnown reports whether the next lookup finds out if packets from the peer's source address leave by other links. The caller
// holds mu.
func (m *pathMTU) sourceRouteKnown(now int64) bool {
	to := m.peer.engine.Endpoint.Load()
	return to != nil && m.known.KnowsLinks(to.Src) && m.peer.engine.Current.Load().Usable(now)
}
