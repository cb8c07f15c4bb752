// SPDX-License-Identifier: Apache-2.0

package xdp

import "time"

// resolve resolves the paths of targets, and publishes changes to the lanes.
func (k *supervisor) resolve(targets []target, era int) {
	if len(targets) == 0 || k.watcher == nil {
		return
	}
	k.resolver.device = k.device.index
	k.resolver.begin(k.mark.Load())
	for _, to := range targets {
		old := k.port.table.get(to)
		if old == nil {
			continue
		}
		p := k.resolver.resolve(to)
		if p.hop != (hop{}) {
			k.watcher.addWatched(p.hop)
			p = k.resolveAgain(to, p)
		}
		if p.reason != old.reason || p.egress != old.egress || p.hop != old.hop {
			k.port.table.put(to, p, era)
		}
		if p.hop != (hop{}) && old.used.Load() {
			k.resolver.confirm(p.hop)
		}
	}
	k.port.table.flush()
}

// resolveAgain resolves a path again if its neighbour was unknown. Otherwise a change from before the neighbour was
// watched would be missed.
func (k *supervisor) resolveAgain(to target, p *path) *path {
	if p.reason == ViaXDP {
		return p
	}
	return k.resolver.resolve(to)
}

// targetsBehind returns the targets whose next hop is one of these neighbours.
func (k *supervisor) targetsBehind(hops map[hop]struct{}) (list []target) {
	for _, to := range k.port.table.targets() {
		if p := k.port.table.get(to); p != nil {
			if _, ok := hops[p.hop]; ok {
				list = append(list, to)
			}
		}
	}
	return list
}

func (k *supervisor) reviewDue(now time.Time) bool {
	return !k.reviewAt.IsZero() && !now.Before(k.reviewAt)
}

// review resolves the paths that were used since the last review again, and deletes those unused for long. If none was
// used, no further review is scheduled until a path is used.
func (k *supervisor) review(now time.Time, era int) {
	var used []target
	followed := map[hop]struct{}{}
	for _, to := range k.port.table.targets() {
		p := k.port.table.get(to)
		if p == nil {
			continue
		}
		if p.used.Swap(false) {
			k.idleReviews[to] = 0
			used = append(used, to)
		} else if k.idleReviews[to]++; k.idleReviews[to] > maxIdleReviews {
			delete(k.idleReviews, to)
			k.port.table.remove(to)
			k.port.table.flush()
			continue
		}
		if p.hop != (hop{}) {
			followed[p.hop] = struct{}{}
		}
	}
	if k.watcher != nil {
		k.watcher.setWatched(followed)
	}
	k.resolve(used, era)
	for _, to := range used {
		k.confirm(to)
	}
	k.reviewAt = time.Time{}
	if len(used) > 0 {
		k.reviewAt = now.Add(reviewInterval)
	}
}

// confirm keeps the neighbour of a path in use reachable.
func (k *supervisor) confirm(to target) {
	if p := k.port.table.get(to); p != nil && p.hop != (hop{}) {
		k.resolver.confirm(p.hop)
	}
}

// inUse reports whether lanes have used any path since the last review.
func (k *supervisor) inUse() bool {
	for _, to := range k.port.table.targets() {
		if p := k.port.table.get(to); p != nil && p.used.Load() {
			return true
		}
	}
	return false
}
