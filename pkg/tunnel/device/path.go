// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// pathState is the state of the path to a peer. The endpoint itself is in engine.Peer, since lanes read it. Peer.mu guards
// all fields but replaced, roamLog and settles.
type pathState struct {
	guarded       config.Endpoint   // the peer's endpoint as guard and Device.endpoints know it; the zero Endpoint for none
	guard         *guardRef         // the guard that knows it
	proven        netip.Addr        // where the peer received a handshake message, while its endpoint is there: nobody else's address
	sourcesOpened int               // sources that were opened for the peer's port plans
	spread        config.PeerSpread // the spread that lanes use now
	spreadLog     pace.Rate
	trainsLost    bool   // the last result of a test of trains
	spreadLogged  string // the reason in the last log message about spread
	spreadActive  bool   // in the last log message about spread
	up            upLog
	name          *endpointName // nil for none
	replaced      atomic.Pointer[replacedAddresses]
	roamLog       pace.Rate
	roams         roamPace
	loop          underlay.Destination // that the port refuses
	looked        loopLookup           // the last one before a handshake message that counts; the zero loopLookup for none
	settles       atomic.Int64         // until then the endpoint may change without a message in the log
}

// replacedAddresses are the addresses of endpoints that the configuration has replaced, newest first. Messages still in flight from there
// must not move the peer back. A message from a source port counts for the listen port, which may have changed, so ports do not matter.
type replacedAddresses struct {
	list  []netip.Addr
	until int64 // by Device.clock
}

// maxReplaced is the number of addresses to remember when the configuration changes more often.
const maxReplaced = 8

// replacedHold is the time for which messages from a replaced address do not move the peer: longer than any round
// trip, and than the time for which a hello waits for a worker.
const replacedHold = int64(time.Second)

// configureEndpoint sets the peer's endpoint as configured, and reports whether its address or port is another one.
func (p *Peer) configureEndpoint(to *underlay.Endpoint) (moved bool) {
	old := p.engine.Endpoint.Load()
	if moved = old != nil && old.Dst != to.Dst; moved {
		p.holdReplaced(old.Dst.Addr(), p.dev.clock())
	}
	p.engine.Endpoint.Store(to)
	p.noteChange()
	if moved {
		p.requestRoute()
	}
	return moved
}

// holdReplaced keeps messages from an address, and from those replaced a moment ago, from moving the peer. Only one caller runs at a time.
func (p *Peer) holdReplaced(address netip.Addr, now int64) {
	list := []netip.Addr{address}
	if before := p.path.replaced.Load(); before != nil && now < before.until {
		list = append(list, before.list[:min(len(before.list), maxReplaced-1)]...)
	}
	p.path.replaced.Store(&replacedAddresses{list, now + replacedHold})
}

// moveEndpoint sets the peer's endpoint to the source of an authenticated message. It needs no lock.
func (p *Peer) moveEndpoint(to underlay.Endpoint) {
	old, ok := p.swapEndpoint(&to)
	if !ok {
		return
	}
	if old == nil || old.Dst != to.Dst {
		level := slog.LevelInfo
		if old == nil || p.settling() || !p.path.roamLog.Allow(p.dev.clock(), time.Minute) { // the first endpoint, or too many changes
			level = slog.LevelDebug
		}
		p.log().Log(context.Background(), level, "peer roamed", "peer", p.key, "endpoint", to.Dst)
	}
	if old != nil && old.Dst != to.Dst {
		p.post(taskRoamed)
		p.noteSession()
	}
	if old != nil && old.Src != to.Src {
		p.requestRoute()
	}
}

// settling reports whether the tunnel has just come up or is not up yet. Then messages from several ports or addresses of the peer may move
// the endpoint there and back; the line "tunnel to peer up" has the final one. It needs no lock.
func (p *Peer) settling() bool {
	return p.engine.Current.Load() == nil || p.dev.clock() < p.path.settles.Load()
}

// roamPace limits the hellos and probes that follow when a peer roams. Two machines with one key roam with each message. It never limits
// roaming itself.
type roamPace struct {
	next  int64       // when the next round may begin
	pause int64       // after the last round
	due   atomic.Bool // the peer has roamed since: until next, no query or probe is sent, and a hello waits. Lanes read it
}

// The pause doubles with each round, and begins anew when the peer has not roamed for maxRoamPause.
const (
	roamPause    = helloPause
	maxRoamPause = int64(time.Minute)
)

// begin reports whether a round may begin now. If not, it is due later.
func (r *roamPace) begin(now int64) bool {
	early := now < r.next
	if r.due.Store(early); early {
		return false
	}
	if r.pause = min(2*r.pause, maxRoamPause); r.pause == 0 || now-r.next >= maxRoamPause {
		r.pause = roamPause
	}
	r.next = now + r.pause
	return true
}

// nextTimer returns when a round is due, 0 for never.
func (r *roamPace) nextTimer() int64 {
	if !r.due.Load() {
		return 0
	}
	return r.next
}

// swapEndpoint sets the peer's endpoint, unless the configuration has just replaced it, even if that happens while
// swapEndpoint runs.
func (p *Peer) swapEndpoint(to *underlay.Endpoint) (old *underlay.Endpoint, ok bool) {
	for {
		old = p.engine.Endpoint.Load()
		if (old == nil || old.Dst != to.Dst) && p.isReplaced(to.Dst.Addr()) {
			return old, false
		}
		if p.engine.Endpoint.CompareAndSwap(old, to) {
			p.noteChange()
			return old, true
		}
	}
}

// isReplaced reports whether the configuration has just set another endpoint in place of one with this address. It needs no lock.
func (p *Peer) isReplaced(address netip.Addr) bool {
	r := p.path.replaced.Load()
	return r != nil && slices.Contains(r.list, address) && p.dev.clock() < r.until
}

// RoutesChanged requests lookups of the routes to all peers. Those whose route has changed lose the local address at which they last reached
// us (Peer.route), and so do those of which that is not known. Call it when the host's routes, addresses or links have changed.
func (d *Device) RoutesChanged() {
	d.loops.generation.Add(1)
	if port := d.port.Load(); port != nil {
		port.RoutesChanged()
	}
	d.peersMu.RLock()
	defer d.peersMu.RUnlock()
	for _, p := range d.peers {
		p.mu.Lock()
		if !p.sourceRouteKnown(d.clock()) {
			p.clearSource()
		}
		p.retestTrains()
		p.mu.Unlock()
		p.requestRoute()
	}
}

// guardRef boxes the interface for atomic.Pointer. Its address tells one guard from the next.
type guardRef struct{ underlay.Guard }

// admitIndex adds the index of b to the guard, unless the guard knows it. refuseIndex removes it. The caller holds the peer's mu.
func (d *Device) admitIndex(b *keyBinding) {
	g := d.guard.Load()
	if g != nil && g != b.guard {
		g.AddIndex(b.index)
	}
	b.guard = g
}

func (d *Device) refuseIndex(b *keyBinding) {
	if b.guard != nil && b.guard == d.guard.Load() {
		b.guard.RemoveIndex(b.index)
	}
}

// updateGuard replaces the peer's endpoint in the guard, and among the known endpoints, by the present one. The caller holds mu.
func (p *Peer) updateGuard() {
	var endpoint config.Endpoint
	if to := p.engine.Endpoint.Load(); to != nil {
		endpoint = config.Endpoint{AddrPort: to.Dst, Scope: to.Scope}
	}
	p.setGuarded(endpoint)
}

// setGuarded replaces the peer's endpoint in the guard and among the known endpoints; the zero Endpoint is none. The caller holds mu.
func (p *Peer) setGuarded(endpoint config.Endpoint) {
	old, g := p.path.guarded, p.dev.guard.Load()
	known := p.path.guard == g // g knows old
	p.path.guarded, p.path.guard = endpoint, g
	if endpoint != old {
		p.dev.endpoints.replace(old.AddrPort, endpoint.AddrPort)
		if s, ok := p.dev.switcher(); ok && endpoint.AddrPort.IsValid() {
			s.EndpointAdded(endpoint)
		}
	}
	if g == nil || known && endpoint == old {
		return
	}
	if endpoint.AddrPort.IsValid() {
		g.AddSource(endpoint)
	}
	if known && old.AddrPort.IsValid() {
		g.RemoveSource(old)
	}
}
