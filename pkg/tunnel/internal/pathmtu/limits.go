// SPDX-License-Identifier: Apache-2.0

package pathmtu

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/probe"
)

const (
	// reportLifetime is the time, in ns, after which a reported size is forgotten: the path may carry
	// more (RFC 8201, section 4; RFC 1191, section 6.3).
	reportLifetime = int64(10 * time.Minute)
	// refusalLifetime is the same for a size that the host refused: to try it again costs one packet.
	refusalLifetime = int64(2 * time.Minute)
	// lookUpPause is the minimum time, in ns, between two lookups of a peer's route.
	lookUpPause = int64(time.Second)
)

// Limits are the limits of one peer. They count while outer packets must not be fragmented. The caller's
// lock guards them.
type Limits struct {
	route    int32        // the MTU of the route in bytes, 0 if unknown
	hops     string       // the next hops of the last route that was known
	reported int32        // by a router in bytes, or by the host as a refusal; 0 for nothing
	path     int16        // of the packet that the router dropped, as the prober numbers paths
	byHost   bool         // reported is the host's
	waits    bool         // for lookUpAt, to look the route up
	until    int64        // when reported is forgotten
	lookUpAt int64        // when the route may be looked up again
	turn     int64        // the turn of this peer among all, 0 for none
	from     *sourceRoute // nil if unknown
}

// sourceRoute is the links by which packets from a source address left when that was last looked up.
type sourceRoute struct {
	src   netip.Addr
	links []int
}

// LookUp reports whether to look the route up now. If not, it is due later.
func (k *Limits) LookUp(now int64, turns *Turns) bool {
	if now >= k.lookUpAt && k.turn == 0 {
		k.turn = turns.Reserve(now)
		k.lookUpAt = k.turn
	}
	if k.waits = now < k.lookUpAt; k.waits {
		return false
	}
	k.turn, k.lookUpAt = 0, now+lookUpPause
	return true
}

// Cancel ends the wait for LookUp.
func (k *Limits) Cancel() { k.waits = false }

// LookUpDue reports whether the wait for LookUp is over.
func (k *Limits) LookUpDue(now int64) bool { return k.waits && now >= k.lookUpAt }

// Change is the difference between two routes.
type Change struct {
	Other  bool // the next hops are others: reports that wait concern another route
	Grown  bool // the MTU is larger than the one before
	Search bool // search anew
}

// SetRoute applies a route: its MTU, 0 if it is unknown, and its next hops, empty if they are. Reports
// from another route no longer hold. Refusals by the host end with a change of the MTU: the new path may
// carry more.
func (k *Limits) SetRoute(mtu int32, hops string) (c Change) {
	if hops != "" {
		if c.Other = k.hops != "" && k.hops != hops; c.Other {
			k.reported, c.Search = 0, true
		}
		k.hops = hops
	}
	if k.route == mtu {
		return c
	}
	if k.byHost {
		k.reported = 0
	}
	c.Grown = k.route != 0 && mtu > k.route
	c.Search = c.Search || k.route != 0 && mtu != 0
	k.route = mtu
	return c
}

// SetLinks records the links by which packets from a source address leave, the zero Addr if routing
// chooses it. It reports whether they are others than before.
func (k *Limits) SetLinks(src netip.Addr, links []int) (moved bool) {
	switch {
	case !src.IsValid():
		k.from = nil
	case k.from == nil || k.from.src != src:
		k.from = &sourceRoute{src, links}
	case !slices.Equal(k.from.links, links):
		k.from, moved = nil, true
	}
	return moved
}

// KnowsLinks reports whether the links of a source address are known.
func (k *Limits) KnowsLinks(src netip.Addr) bool { return k.from != nil && k.from.src == src }

// ForgetLinks is called when the endpoint has changed.
func (k *Limits) ForgetLinks() { k.from = nil }

// Refuse records that the host refused a packet of that size. If the MTU of the route does not explain
// that, the next common size may pass.
func (k *Limits) Refuse(size int32, now int64) {
	if k.route == 0 || size <= k.route {
		k.report(Limits{reported: int32(probe.Plateau(int(size))), byHost: true, until: now + refusalLifetime}, now)
	}
}

// Report records a size that a router has reported for a path of the prober.
func (k *Limits) Report(size int32, path int, now int64) {
	k.report(Limits{reported: size, path: int16(path), until: now + reportLifetime}, now)
}

// report stores a reported size, unless a smaller one was reported.
func (k *Limits) report(r Limits, now int64) {
	if k.reported == 0 || r.reported <= k.reported || now >= k.until {
		k.reported, k.path, k.byHost, k.until = r.reported, r.path, r.byHost, r.until
	}
}

// Refute forgets a reported size after a larger probe was answered on the same path. The host refuses
// probes like data, so an answer on any path refutes a refusal by the host.
func (k *Limits) Refute(size, path int) {
	if size > int(k.reported) && (k.byHost || path == int(k.path)) {
		k.reported = 0
	}
}

// Expire reports whether it has forgotten a reported size.
func (k *Limits) Expire(now int64) bool {
	expired := k.reported != 0 && now >= k.until
	if expired {
		k.reported = 0
	}
	return expired
}

// Next returns when Expire or LookUp is due, 0 for never.
func (k *Limits) Next() int64 {
	switch {
	case k.waits && (k.reported == 0 || k.lookUpAt < k.until):
		return k.lookUpAt
	case k.reported != 0:
		return k.until
	}
	return 0
}

// Forget discards everything: the path is another one. A reserved turn is kept: a peer that roams with
// every message would take one each time, and all others would wait for them.
func (k *Limits) Forget() { *k = Limits{turn: k.turn, lookUpAt: k.turn} }

// Apply lowers the limit of probes, and says how it is known. A search without a limit stays visible,
// also if the route has one.
func (k *Limits) Apply(limit int, state config.PathMTUState) (int, config.PathMTUState) {
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
