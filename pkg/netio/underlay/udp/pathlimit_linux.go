// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"maps"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

const (
	// pathLifetime is the time after which a limit is forgotten: the route may have changed, or the path MTU have grown. If it has not,
	// that costs the refused system calls of one batch.
	pathLifetime = 2 * time.Minute
	// maxPaths is the maximum number of destinations with a limit. Those of others are not remembered.
	maxPaths = 256
	// maxPathsWithoutGSO is the number of destinations without UDP GSO from which it is not tried for any: the device that refuses it then
	// carries most of the traffic.
	maxPathsWithoutGSO = maxPaths / 2
	// unlimited is a size above that of all datagrams.
	unlimited = math.MaxInt
)

// destination identifies a path. The source address and the ports have no part in it: they rarely change the route.
type destination struct {
	addr  netip.Addr
	scope uint32
}

// pathLimit describes what the kernel has refused to send to a destination.
type pathLimit struct {
	train    int // the smallest size in bytes of the datagrams of refused trains; 1 if the device cannot do UDP GSO
	datagram int // the smallest size in bytes of refused datagrams
	until    time.Time
}

// refuses reports whether a run of such datagrams cannot be sent at once.
func (l *pathLimit) refuses(size, segments int) bool {
	return size >= l.datagram || segments > 1 && size >= l.train
}

// pathTable is an immutable snapshot of the limits.
type pathTable struct {
	limits     map[destination]pathLimit
	withoutGSO int       // destinations without UDP GSO
	next       time.Time // the earliest end of a limit
}

// limit returns the limit of a destination. A nil table has none.
func (t *pathTable) limit(to *underlay.Endpoint) (pathLimit, bool) {
	if t == nil {
		return pathLimit{unlimited, unlimited, time.Time{}}, false
	}
	l, ok := t.limits[destination{to.Dst.Addr(), to.Scope}]
	if !ok {
		l.train, l.datagram = unlimited, unlimited
	}
	if t.withoutGSO >= maxPathsWithoutGSO {
		l.train, ok = 1, true
	}
	return l, ok
}

// pathLimits holds the limits of a Port, for all of its senders. While there is none, reading costs one atomic load.
type pathLimits struct {
	table atomic.Pointer[pathTable] // nil for no limits
	mu    sync.Mutex                // held to replace table
	now   func() time.Time
}

// current returns the present limits, nil for none.
func (p *pathLimits) current() *pathTable {
	t := p.table.Load()
	if t == nil {
		return nil
	}
	now := p.now()
	if now.Before(t.next) {
		return t
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.replace(now, func(map[destination]pathLimit) {})
}

// withoutGSO returns the number of destinations without UDP GSO.
func (p *pathLimits) withoutGSO() int {
	if t := p.current(); t != nil {
		return t.withoutGSO
	}
	return 0
}

// add notes the sizes of a refused train and of a refused datagram, and returns the limits with them.
func (p *pathLimits) add(to *underlay.Endpoint, train, datagram int) *pathTable {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.table.Load()
	if l, known := t.limit(to); known && train >= l.train && datagram >= l.datagram {
		return t
	}
	now := p.now()
	return p.replace(now, func(limits map[destination]pathLimit) {
		key := destination{to.Dst.Addr(), to.Scope}
		l, known := limits[key]
		switch {
		case known:
			train, datagram = min(train, l.train), min(datagram, l.datagram)
		case len(limits) >= maxPaths:
			return
		}
		limits[key] = pathLimit{train, datagram, now.Add(pathLifetime)}
	})
}

// replace stores and returns the limits that have not ended, after a change. The caller holds mu.
func (p *pathLimits) replace(now time.Time, change func(limits map[destination]pathLimit)) *pathTable {
	next := &pathTable{limits: map[destination]pathLimit{}}
	if t := p.table.Load(); t != nil {
		next.limits = maps.Clone(t.limits)
	}
	maps.DeleteFunc(next.limits, func(_ destination, l pathLimit) bool { return !now.Before(l.until) })
	change(next.limits)
	for _, l := range next.limits {
		if l.train == 1 {
			next.withoutGSO++
		}
		if next.next.IsZero() || l.until.Before(next.next) {
			next.next = l.until
		}
	}
	if len(next.limits) == 0 {
		next = nil
	}
	p.table.Store(next)
	return next
}

// queueLimited adds the datagrams of run i, as far as their path takes them, and reports true, if a limit of the path applies to them.
func (s *sender) queueLimited(runs []underlay.Run, i int) bool {
	r := &runs[i]
	l, ok := s.paths.limit(r.To)
	if !ok || !l.refuses(datagramSize(r), r.Segments) {
		return false
	}
	s.queueSingly(&s.out, runs, i)
	return true
}

// datagramSize returns the size of the datagrams of r, of which the last may be smaller.
func datagramSize(r *underlay.Run) (n int) {
	if r.Segments > 1 {
		return r.SegSize
	}
	for _, part := range r.Parts {
		n += len(part)
	}
	return n
}

// sendSingly sends the datagrams of run i, whose train was refused, and notes the limit. EINVAL has many reasons: the train was one if
// the kernel accepts the datagrams.
func (s *sender) sendSingly(runs []underlay.Run, i int, errno unix.Errno) {
	r := &runs[i]
	s.queueSingly(&s.resend, runs, i)
	s.flush(&s.resend, runs) // records each error
	switch {
	case errno == unix.EIO:
		s.paths = s.port.paths.add(r.To, 1, unlimited)
	case r.Err == nil || r.Sent > 0:
		s.paths = s.port.paths.add(r.To, r.SegSize, unlimited)
	}
}
