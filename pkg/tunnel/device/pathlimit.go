// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/probe"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// pathLimits are limits of outer packets to a peer that are known without probes. They count while outer packets must not be fragmented.
// Peer.mu guards them.
type pathLimits struct {
	route    int32  // the MTU of the route in bytes, 0 if unknown
	hops     string // Route.Hops of the last route that was known
	reported int32  // what a router has reported in bytes, or the host by a refusal; 0 for nothing
	path     int16  // of the packet that the router dropped, as the prober numbers paths
	byHost   bool   // reported is the host's
	waits    bool   // for lookUpAt, to look the route up
	until    int64  // when reported is forgotten
	lookUpAt int64  // when the route may be looked up again
	turn     int64  // the turn of this peer among all, 0 for none
	from     *sourceRoute
}

const (
	// reportLifetime is the time after which a reported size is forgotten: the path may carry more (RFC 8201, section 4; RFC 1191, section
	// 6.3).
	reportLifetime = int64(10 * time.Minute)
	// refusalLifetime is the same for a size that the host refused: to try it again costs one packet.
	refusalLifetime = int64(2 * time.Minute)
	// lookUpPause is the minimum time between two lookups of a peer's route.
	lookUpPause = int64(time.Second)
	// lookUpShare is the minimum time between lookups for different peers: each costs some 50 µs, and a change of routes concerns all peers.
	lookUpShare = int64(time.Millisecond)
)

// storeMin stores the smaller of a and n. Zero stands for nothing.
func storeMin(a *atomic.Uint64, n uint64) {
	for {
		old := a.Load()
		if old != 0 && old <= n || a.CompareAndSwap(old, n) {
			return
		}
	}
}

// lookUpRoute looks up the route to a peer with a session, or whose route leads into the tunnel. If
// it has just done that, the timer calls it again. The caller holds mu.
func (m *pathMTU) lookUpRoute(now int64) {
	p := m.peer
	k, to := &m.known, p.engine.Endpoint.Load()
	k.waits = false
	if to == nil || p.dev.cfg.Route == nil || !p.engine.Current.Load().Usable(now) && !p.location.isLooping() {
		return
	}
	if now >= k.lookUpAt && k.turn == 0 {
		k.turn = p.dev.routeTurns.reserve(now)
		k.lookUpAt = k.turn
	}
	if k.waits = now < k.lookUpAt; k.waits {
		return
	}
	k.turn, k.lookUpAt = 0, now+lookUpPause
	m.update(now) // for the overhead
	r := m.lookUp(to)
	p.location.checkLoop(p.engine.Endpoint.Load())
	m.setRoute(r)
	if size := int(m.refused.Swap(0)); size > 0 && !p.location.isLooping() {
		k.refuse(int32(size+m.overhead-wire.DataOverhead), now)
	}
	m.update(now)
}

// lookUpTurns gives the peers turns for lookups of their routes.
type lookUpTurns struct{ next atomic.Int64 }

// reserve returns the first free turn from now on.
func (l *lookUpTurns) reserve(now int64) (at int64) {
	for {
		next := l.next.Load()
		at = max(now, next)
		if at-now > int64(MaxPeers)*lookUpShare { // the clock has gone back
			at = now
		}
		if l.next.CompareAndSwap(next, at+lookUpShare) {
			return at
		}
	}
}

// setRoute applies the route. What routers and the host reported on another one no longer holds, and the search begins again. The caller holds
// mu.
func (m *pathMTU) setRoute(r Route) {
	p := m.peer
	k := &m.known
	if r.Hops != "" {
		if k.hops != "" && k.hops != r.Hops {
			k.reported = 0
			m.reported.Store(0)
			p.probing.stop()
		}
		k.hops = r.Hops
	}
	if p.location.isLooping() {
		r.MTU = 0 // the tunnel's own
	}
	m.setRouteMTU(int32(r.MTU))
}

// setRouteMTU applies the MTU of the route. Refusals on the route before no longer hold, and the search begins again: the new path may carry
// more. The caller holds mu.
func (m *pathMTU) setRouteMTU(mtu int32) {
	p := m.peer
	k := &m.known
	if k.route == mtu {
		return
	}
	if k.byHost {
		k.reported = 0
	}
	if port := p.dev.outer.port.Load(); port != nil && k.route != 0 && mtu > k.route {
		port.RoutesChanged()
	}
	if k.route != 0 && mtu != 0 {
		p.probing.stop()
	}
	k.route = mtu
}

// refuse records that the host refused a packet of that size. If the MTU of the route does not explain that, the next common size may pass.
func (k *pathLimits) refuse(size int32, now int64) {
	if k.route == 0 || size <= k.route {
		k.report(pathLimits{reported: int32(probe.Plateau(int(size))), byHost: true, until: now + refusalLifetime}, now)
	}
}

// report stores a reported size, unless a smaller one was reported.
func (k *pathLimits) report(r pathLimits, now int64) {
	if k.reported == 0 || r.reported <= k.reported || now >= k.until {
		k.reported, k.path, k.byHost, k.until = r.reported, r.path, r.byHost, r.until
	}
}

// refute forgets a reported size after a larger probe was answered on the same path. The host refuses probes like data, so
// an answer on any path refutes a refusal by the host.
func (k *pathLimits) refute(size, path int) {
	if size > int(k.reported) && (k.byHost || path == int(k.path)) {
		k.reported = 0
	}
}

// runTimer does what is due. The caller holds mu.
func (m *pathMTU) runTimer(now int64) {
	k := &m.known
	if k.waits && now >= k.lookUpAt {
		m.lookUpRoute(now)
	}
	if k.reported != 0 && now >= k.until {
		k.reported = 0
		m.apply()
	}
}

// accept takes an ICMP error. Any goroutine may call it.
func (x *icmpErrors) accept(m *toobig.Message) {
	if p := x.senderOf(m); p != nil && !x.isOwnError(m) {
		x.counts.believed.Add(1)
		storeMin(&p.mtu.reported, uint64(reportedSize(m))<<16|uint64(m.From.Port()))
		p.post(taskProbe)
		return
	}
	x.counts.ignored.Add(1)
}

// isOwnError reports whether this host made an ICMP error: it says nothing about the path. In a routing loop the tunnel and the kernel make many.
func (x *icmpErrors) isOwnError(m *toobig.Message) bool {
	d := x.dev
	return d.cfg.OwnError != nil && d.cfg.OwnError(m)
}

// reportedSize returns the size that passes, according to m. A router that does not say it drops what is larger than the next common MTU
// (RFC 1191, section 5). No path has less than the minimum MTU of its protocol.
func reportedSize(m *toobig.Message) int {
	size, floor := m.MTU, probe.BaseSize
	if m.To.Addr().Is4() {
		floor = probe.FloorIPv4
	}
	if size == 0 {
		size = probe.Plateau(m.Size)
	}
	return max(size, floor)
}

// senderOf returns the peer to which this device sent the packet that m quotes, or nil. m must quote a data message of a present session,
// since an attacker off the path cannot know the receiver index (RFC 8201, section 6). Reports of less than the minimum MTU of IPv6 are
// discarded (section 4).
func (x *icmpErrors) senderOf(m *toobig.Message) *Peer {
	d := x.dev
	if m.MTU >= m.Size || len(m.Payload) < wire.DataHeaderLen || m.To.Addr().Is6() && m.MTU < probe.BaseSize {
		return nil
	}
	if wire.Type(binary.LittleEndian.Uint32(m.Payload)) != wire.TypeData {
		return nil
	}
	receiver, counter := binary.LittleEndian.Uint32(m.Payload[4:]), binary.LittleEndian.Uint64(m.Payload[8:])
	for _, p := range x.index.peers(d, m.To) {
		if p.sessions.hasSent(receiver, counter) {
			return p
		}
	}
	return nil
}

// icmpErrors takes the ICMP errors that report a path MTU. It is safe for concurrent use.
type icmpErrors struct {
	dev    *Device
	index  endpointIndex
	counts icmpCounters
}

// endpointIndex finds the peers at an endpoint. Anybody can send ICMP errors, so an error must not cost a search of all peers. The index is
// built for the first error, and discarded after indexLifetime: nothing keeps it up to date, and a router repeats its report.
type endpointIndex struct {
	mu    sync.Mutex
	index map[netip.AddrPort][]*Peer // nil for none
}

// indexLifetime is how long an index is used after it was built.
const indexLifetime = time.Second

// peers returns the peers of d that have an endpoint, or had it less than indexLifetime ago.
func (x *endpointIndex) peers(d *Device, endpoint netip.AddrPort) []*Peer {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.index == nil {
		x.index = d.peers.byEndpoint()
		time.AfterFunc(indexLifetime, x.discard)
	}
	return x.index[endpoint]
}

func (x *endpointIndex) discard() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.index = nil
}

// takeReported applies the size of an ICMP error. The caller holds mu.
func (m *pathMTU) takeReported(now int64) {
	p := m.peer
	r := m.reported.Swap(0)
	if r == 0 {
		return
	}
	path := m.pathOf(uint16(r))
	m.known.report(pathLimits{reported: int32(r >> 16), path: int16(path), until: now + reportLifetime}, now)
	m.update(now)
	if p.probing.active() {
		p.probing.Confirm(now, path)
	}
}

// pathOf returns the number that the prober gives the path from a source port: 0 for the listen port. The caller holds mu.
func (m *pathMTU) pathOf(port uint16) int { return 1 + slices.Index(m.peer.probing.ports(), port) }

// apply lowers the limit of probes, and says how it is known. A search without a limit stays visible, also if the route has one.
func (k *pathLimits) apply(limit int, state config.PathMTUState) (int, config.PathMTUState) {
	if n := int(k.route); n > 0 && (limit == 0 || n < limit) {
		if limit > 0 || state == config.PathMTUUnknown {
			state = config.PathMTURoute
		}
		limit = n
	}
	if n := int(k.reported); n > 0 && (limit == 0 || n < limit) {
		limit = n
		switch {
		case state == config.PathMTUUnreachable:
		case k.byHost:
			state = config.PathMTUHost
		default:
			state = config.PathMTUICMP
		}
	}
	return limit, state
}

// forget discards what was known without probes: the path is another one. A reserved turn is kept: a peer that roams with every
// message would take one each time, and all others would wait for them. The caller holds mu.
func (m *pathMTU) forget() {
	turn := m.known.turn
	m.known = pathLimits{turn: turn, lookUpAt: turn}
	m.forgetReports()
}

// forgetReports discards what waits to be applied, and is about another endpoint. The caller holds mu.
func (m *pathMTU) forgetReports() {
	m.known.from = nil
	m.reported.Store(0)
	m.refused.Store(0)
}

// next returns when there is something to do, 0 for never.
func (k *pathLimits) next() int64 {
	switch {
	case k.waits && (k.reported == 0 || k.lookUpAt < k.until):
		return k.lookUpAt
	case k.reported != 0:
		return k.until
	}
	return 0
}

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

// lookUp looks up the route to the peer. If packets from the peer's source address leave by other links than before, routing chooses the
// address again, as in the in-kernel WireGuard (send4, drivers/net/wireguard/socket.c). The caller holds mu.
func (m *pathMTU) lookUp(to *underlay.Endpoint) Route {
	p := m.peer
	k := &m.known
	r := p.dev.outer.routeTo(to)
	switch {
	case !to.Src.IsValid():
		k.from = nil
	case k.from == nil || k.from.src != to.Src:
		k.from = &sourceRoute{to.Src, r.Links}
	case !slices.Equal(k.from.links, r.Links):
		k.from = nil
		p.location.clearSource()
		r = p.dev.outer.routeTo(p.engine.Endpoint.Load())
	}
	return r
}

// sourceRouteKnown reports whether the next lookup finds out if packets from the peer's source address leave by other links. The caller
// holds mu.
func (m *pathMTU) sourceRouteKnown(now int64) bool {
	p := m.peer
	to, from := p.engine.Endpoint.Load(), m.known.from
	return to != nil && from != nil && from.src == to.Src && p.engine.Current.Load().Usable(now)
}
