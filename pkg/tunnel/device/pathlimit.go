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

// icmpCounters counts the ICMP errors that report a path MTU.
type icmpCounters struct{ believed, ignored atomic.Uint64 }

func (c *icmpCounters) snapshot() config.ICMPErrorCounts {
	return config.ICMPErrorCounts{Believed: c.believed.Load(), Ignored: c.ignored.Load()}
}

// configureFragments permits or forbids fragments of outer packets; nil leaves the setting unchanged. The caller holds mu.
func (d *Device) configureFragments(permitted *config.OnOff) {
	if permitted == nil || d.fragments.Swap(bool(*permitted)) == bool(*permitted) {
		return
	}
	port := d.port.Load()
	if port == nil {
		return
	}
	if err := port.SetFragments(bool(*permitted)); err != nil {
		d.log.Warn("changing the Don't Fragment option of some sockets failed, they handle large packets as before until the interface goes down and up",
			"outer_fragments", permitted, "error", err)
	}
	for _, p := range d.peers {
		p.mu.Lock()
		p.applyPathMTU()
		p.mu.Unlock()
	}
}

// sendsFragments reports whether outer packets may be fragmented: then only probes limit their size.
func (d *Device) sendsFragments() bool {
	port := d.port.Load()
	return port == nil || !port.Features().DontFragment
}

// TooBig implements engine.SlowPath: the host refused a packet of that size. The network device's MTU has shrunk, there is another route, or
// IPsec needs room.
func (p *Peer) TooBig(size int) {
	storeMin(&p.requests.refused, uint64(size))
	p.requestRoute()
}

// storeMin stores the smaller of a and n. Zero stands for nothing.
func storeMin(a *atomic.Uint64, n uint64) {
	for {
		old := a.Load()
		if old != 0 && old <= n || a.CompareAndSwap(old, n) {
			return
		}
	}
}

// requestRoute has the route to the peer looked up. It needs no lock.
func (p *Peer) requestRoute() { p.post(taskRoute) }

// lookUpRoute looks up the route to a peer with a session, or whose route leads into the tunnel, unless it has just done so: then the timer does. The caller holds
// mu.
func (p *Peer) lookUpRoute(now int64) {
	k, to := &p.mtu.known, p.engine.Endpoint.Load()
	k.waits = false
	if to == nil || p.dev.cfg.Route == nil || !p.engine.Current.Load().Usable(now) && !p.isLooping() {
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
	p.updatePathMTU(now) // for the overhead
	r := p.route(to)
	p.checkLoop(p.engine.Endpoint.Load())
	p.setRoute(r)
	if size := int(p.requests.refused.Swap(0)); size > 0 && !p.isLooping() {
		k.refuse(int32(size+p.mtu.overhead-wire.DataOverhead), now)
	}
	p.updatePathMTU(now)
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
func (p *Peer) setRoute(r Route) {
	k := &p.mtu.known
	if r.Hops != "" {
		if k.hops != "" && k.hops != r.Hops {
			k.reported = 0
			p.requests.reported.Store(0)
			p.probing.stop()
		}
		k.hops = r.Hops
	}
	if p.isLooping() {
		r.MTU = 0 // the tunnel's own
	}
	p.setRouteMTU(int32(r.MTU))
}

// setRouteMTU applies the MTU of the route. Refusals on the route before no longer hold, and the search begins again: the new path may carry
// more. The caller holds mu.
func (p *Peer) setRouteMTU(mtu int32) {
	k := &p.mtu.known
	if k.route == mtu {
		return
	}
	if k.byHost {
		k.reported = 0
	}
	if port := p.dev.port.Load(); port != nil && k.route != 0 && mtu > k.route {
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

// runPathLimits does what is due. The caller holds mu.
func (p *Peer) runPathLimits(now int64) {
	k := &p.mtu.known
	if k.waits && now >= k.lookUpAt {
		p.lookUpRoute(now)
	}
	if k.reported != 0 && now >= k.until {
		k.reported = 0
		p.applyPathMTU()
	}
}

// onTooBig takes an ICMP error. Any goroutine may call it.
func (d *Device) onTooBig(m *toobig.Message) {
	if p := d.senderOf(m); p != nil && !d.isOwnError(m) {
		d.icmpCounts.believed.Add(1)
		storeMin(&p.requests.reported, uint64(reportedSize(m))<<16|uint64(m.From.Port()))
		p.post(taskProbe)
		return
	}
	d.icmpCounts.ignored.Add(1)
}

// isOwnError reports whether this host made an ICMP error: it says nothing about the path. In a routing loop the tunnel and the kernel make many.
func (d *Device) isOwnError(m *toobig.Message) bool {
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
func (d *Device) senderOf(m *toobig.Message) *Peer {
	if m.MTU >= m.Size || len(m.Payload) < wire.DataHeaderLen || m.To.Addr().Is6() && m.MTU < probe.BaseSize {
		return nil
	}
	if wire.Type(binary.LittleEndian.Uint32(m.Payload)) != wire.TypeData {
		return nil
	}
	receiver, counter := binary.LittleEndian.Uint32(m.Payload[4:]), binary.LittleEndian.Uint64(m.Payload[8:])
	for _, p := range d.atEndpoint.peers(d, m.To) {
		if p.hasSent(receiver, counter) {
			return p
		}
	}
	return nil
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
		x.index = d.peersByEndpoint()
		time.AfterFunc(indexLifetime, x.discard)
	}
	return x.index[endpoint]
}

func (x *endpointIndex) discard() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.index = nil
}

func (d *Device) peersByEndpoint() map[netip.AddrPort][]*Peer {
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	all := make(map[netip.AddrPort][]*Peer, len(d.peers))
	for _, p := range d.peers {
		if to := p.engine.Endpoint.Load(); to != nil {
			all[to.Dst] = append(all[to.Dst], p)
		}
	}
	return all
}

// hasSent reports whether a message with this header was sent to the peer in the present session.
func (p *Peer) hasSent(receiver uint32, counter uint64) bool {
	keys := p.engine.Current.Load()
	return keys != nil && keys.Remote() == receiver && keys.HasSent(counter)
}

// takeReported applies the size of an ICMP error. The caller holds mu.
func (p *Peer) takeReported(now int64) {
	r := p.requests.reported.Swap(0)
	if r == 0 {
		return
	}
	path := p.pathOf(uint16(r))
	p.mtu.known.report(pathLimits{reported: int32(r >> 16), path: int16(path), until: now + reportLifetime}, now)
	p.updatePathMTU(now)
	if p.probing.active() {
		p.probing.Confirm(now, path)
	}
}

// pathOf returns the number that the prober gives the path from a source port: 0 for the listen port. The caller holds mu.
func (p *Peer) pathOf(port uint16) int { return 1 + slices.Index(p.probedPorts(), port) }

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

// forgetPathLimits discards what was known without probes: the path is another one. A reserved turn is kept: a peer that roams with every
// message would take one each time, and all others would wait for them. The caller holds mu.
func (p *Peer) forgetPathLimits() {
	turn := p.mtu.known.turn
	p.mtu.known = pathLimits{turn: turn, lookUpAt: turn}
	p.forgetReports()
}

// forgetReports discards what waits to be applied, and is about another endpoint. The caller holds mu.
func (p *Peer) forgetReports() {
	p.mtu.known.from = nil
	p.requests.reported.Store(0)
	p.requests.refused.Store(0)
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
