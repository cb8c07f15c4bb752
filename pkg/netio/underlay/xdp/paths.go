// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"net/netip"
	"slices"
	"time"
)

// resolve resolves paths, and publishes changes to the lanes.
func (sup *supervisor) resolve(list []*targetPath) {
	if len(list) == 0 || sup.watcher == nil {
		return
	}
	before := make([]*path, len(list))
	for i, r := range list {
		before[i] = r.path.Load() // before the settings: table.clear follows a change of them
	}
	sup.resolver.device = sup.device.index
	sup.resolver.begin(sup.mark.Load(), sup.port.dontFragment.Load())
	for i, r := range list {
		old := before[i]
		if old == nil {
			continue
		}
		p := sup.resolver.resolve(r.to)
		if p.hop != (hop{}) {
			sup.watcher.addWatched(p.hop)
			if p.reason != ViaXDP { // again: the neighbour may have changed before it was watched
				p = sup.resolver.resolve(r.to)
			}
		}
		if p.reason != old.reason || p.egress != old.egress || p.hop != old.hop {
			r.path.CompareAndSwap(old, p)
		}
		if p.hop != (hop{}) && r.used.Load() {
			sup.resolver.confirm(p.hop)
		}
	}
}

// pathsBehind returns the paths whose next hop is one of these neighbours, or whose target has one of these addresses.
func (sup *supervisor) pathsBehind(hops map[hop]struct{}, addresses map[netip.Addr]struct{}) (list []*targetPath) {
	for _, r := range sup.port.table.all() {
		p := r.path.Load()
		if p == nil {
			continue
		}
		_, behind := hops[p.hop]
		_, at := addresses[r.to.dst]
		if behind || at {
			list = append(list, r)
		}
	}
	return list
}

func (sup *supervisor) reviewDue(now time.Time) bool {
	return !sup.reviewAt.IsZero() && !now.Before(sup.reviewAt)
}

// review resolves the paths that were used since the last review again, and deletes targets unused for long. If none was
// used, no further review is scheduled until a path is used.
func (sup *supervisor) review(now time.Time) {
	var used []*targetPath
	followed := map[hop]struct{}{}
	for _, r := range sup.port.table.all() {
		if r.used.Swap(false) {
			r.idle = 0
			used = append(used, r)
		} else if r.idle++; r.idle > maxIdleReviews {
			sup.port.table.remove(r)
			continue
		}
		if p := r.path.Load(); p != nil && p.hop != (hop{}) {
			followed[p.hop] = struct{}{}
		}
	}
	if sup.watcher != nil {
		sup.watcher.setWatched(followed)
	}
	sup.resolve(used)
	for _, r := range used { // keeps the neighbours of paths in use reachable
		if p := r.path.Load(); p != nil && p.hop != (hop{}) {
			sup.resolver.confirm(p.hop)
		}
	}
	sup.reviewAt = time.Time{}
	if len(used) > 0 {
		sup.reviewAt = now.Add(sup.reviewInterval())
	}
}

// inUse reports whether lanes have used any path since the last review.
func (sup *supervisor) inUse() bool {
	return slices.ContainsFunc(sup.port.table.all(), func(r *targetPath) bool { return r.used.Load() })
}
