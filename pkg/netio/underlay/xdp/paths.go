// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"net/netip"
	"time"
)

// resolve resolves the paths of targets, and publishes changes to the lanes.
func (sup *supervisor) resolve(targets []target, era int) {
	if len(targets) == 0 || sup.watcher == nil {
		return
	}
	sup.resolver.device = sup.device.index
	sup.resolver.begin(sup.mark.Load(), sup.port.dontFragment.Load())
	for _, to := range targets {
		old := sup.port.table.get(to)
		if old == nil {
			continue
		}
		p := sup.resolver.resolve(to)
		if p.hop != (hop{}) {
			sup.watcher.addWatched(p.hop)
			p = sup.resolveAgain(to, p)
		}
		if p.reason != old.reason || p.egress != old.egress || p.hop != old.hop {
			sup.port.table.put(to, p, era)
		}
		if p.hop != (hop{}) && old.used.Load() {
			sup.resolver.confirm(p.hop)
		}
	}
	sup.port.table.flush()
}

// resolveAgain resolves a path again if its neighbour was unknown. Otherwise a change from before the neighbour was
// watched would be missed.
func (sup *supervisor) resolveAgain(to target, p *path) *path {
	if p.reason == ViaXDP {
		return p
	}
	return sup.resolver.resolve(to)
}

// targetsBehind returns the targets whose next hop is one of these neighbours, or whose address is one of those.
func (sup *supervisor) targetsBehind(hops map[hop]struct{}, addresses map[netip.Addr]struct{}) (list []target) {
	for _, to := range sup.port.table.targets() {
		p := sup.port.table.get(to)
		if p == nil {
			continue
		}
		_, behind := hops[p.hop]
		_, at := addresses[to.dst]
		if behind || at {
			list = append(list, to)
		}
	}
	return list
}

func (sup *supervisor) reviewDue(now time.Time) bool {
	return !sup.reviewAt.IsZero() && !now.Before(sup.reviewAt)
}

// review resolves the paths that were used since the last review again, and deletes those unused for long. If none was
// used, no further review is scheduled until a path is used.
func (sup *supervisor) review(now time.Time, era int) {
	var used []target
	followed := map[hop]struct{}{}
	for _, to := range sup.port.table.targets() {
		p := sup.port.table.get(to)
		if p == nil {
			continue
		}
		if p.used.Swap(false) {
			sup.idleReviews[to] = 0
			used = append(used, to)
		} else if sup.idleReviews[to]++; sup.idleReviews[to] > maxIdleReviews {
			delete(sup.idleReviews, to)
			sup.port.table.remove(to)
			sup.port.table.flush()
			continue
		}
		if p.hop != (hop{}) {
			followed[p.hop] = struct{}{}
		}
	}
	if sup.watcher != nil {
		sup.watcher.setWatched(followed)
	}
	sup.resolve(used, era)
	for _, to := range used {
		sup.confirm(to)
	}
	sup.reviewAt = time.Time{}
	if len(used) > 0 {
		sup.reviewAt = now.Add(sup.reviewInterval())
	}
}

// confirm keeps the neighbour of a path in use reachable.
func (sup *supervisor) confirm(to target) {
	if p := sup.port.table.get(to); p != nil && p.hop != (hop{}) {
		sup.resolver.confirm(p.hop)
	}
}

// inUse reports whether lanes have used any path since the last review.
func (sup *supervisor) inUse() bool {
	for _, to := range sup.port.table.targets() {
		if p := sup.port.table.get(to); p != nil && p.used.Load() {
			return true
		}
	}
	return false
}
