// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"maps"
	"math"
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
	// maxPaths is the maximum number of destinations with a limit. Each train to one more destination costs a refused system call.
	maxPaths = 256
	// maxPathsOfPeer is the maximum number of destinations of one peer, which may roam: the limits of its other ones are worth nothing.
	maxPathsOfPeer = 4
	// maxPathsWithoutGSO is the number of destinations without UDP GSO from which it is not tried
	// for any. The device that refuses it then carries most of the traffic.
	maxPathsWithoutGSO = maxPaths / 2
	// maxPathsLosingTrains is the maximum number of destinations to which trains are lost. The caller of SetTrainsLost tests them
	// again and again, so they do not count as destinations without UDP GSO.
	maxPathsLosingTrains = 4 * maxPaths
	// unlimited is larger than all datagrams.
	unlimited = math.MaxInt
)

// pathLimit describes what the kernel has refused to send to a destination.
type pathLimit struct {
	train    sizeLimit // of the datagrams in trains; 1 byte if the device cannot do UDP GSO
	datagram sizeLimit // of single datagrams
	peer     uint16    // Run.Peer of the run that was refused first
}

// sizeLimit is the smallest size that was refused.
type sizeLimit struct {
	bytes int
	until time.Time
}

var noLimit = pathLimit{train: sizeLimit{bytes: unlimited}, datagram: sizeLimit{bytes: unlimited}}

// refuses reports whether a run of such datagrams cannot be sent at once.
func (l *pathLimit) refuses(size, segments int) bool {
	return size >= l.datagram.bytes || segments > 1 && size >= l.train.bytes
}

// at returns the limits that have not ended.
func (l pathLimit) at(now time.Time) pathLimit {
	for _, s := range []*sizeLimit{&l.train, &l.datagram} {
		if !now.Before(s.until) {
			*s = sizeLimit{bytes: unlimited}
		}
	}
	return l
}

// ended reports whether no limit is left.
func (l *pathLimit) ended() bool {
	return l.train.bytes == unlimited && l.datagram.bytes == unlimited
}

// end returns when the last limit ends.
func (l *pathLimit) end() time.Time {
	if l.train.until.After(l.datagram.until) {
		return l.train.until
	}
	return l.datagram.until
}

// note lowers the limit to a refused size.
func (l *sizeLimit) note(bytes int, until time.Time) {
	if bytes < l.bytes {
		*l = sizeLimit{bytes, until}
	}
}

// lower takes over a smaller size and an earlier end.
func (l *sizeLimit) lower(o sizeLimit) {
	l.bytes = min(l.bytes, o.bytes)
	if l.until.IsZero() || !o.until.IsZero() && o.until.Before(l.until) {
		l.until = o.until
	}
}

// pathTable is an immutable snapshot of the limits, of which some may have ended.
type pathTable struct {
	limits     map[underlay.Destination]pathLimit
	least      pathLimit                         // the smallest sizes, and the earliest ends, of limits
	withoutGSO int                               // destinations without UDP GSO
	lost       map[underlay.Destination]struct{} // those to which trains are lost
}

// limit returns the limits of a destination.
func (t *pathTable) limit(to *underlay.Endpoint) pathLimit {
	if t == nil {
		return noLimit
	}
	l, ok := t.limits[to.Destination()]
	if !ok {
		l = noLimit
	}
	if _, lost := t.lost[to.Destination()]; lost || t.withoutGSO >= maxPathsWithoutGSO {
		l.train.bytes = 1
	}
	return l
}

// limitOf returns the limits for a run. A limit of datagrams was learned with the sockets' fragment option, so it does not hold for a run
// that sets its own. A train with DontFragment tests whether a limit of trains still holds.
func (t *pathTable) limitOf(r *underlay.Run) pathLimit {
	l := t.limit(r.To)
	if hasOwnFragmentOption(r) {
		l.datagram.bytes = unlimited
	}
	if r.DontFragment {
		l.train.bytes = unlimited
	}
	return l
}

// hasOwnFragmentOption reports whether a run says itself whether it may be fragmented.
func hasOwnFragmentOption(r *underlay.Run) bool { return r.DontFragment || r.MayFragment }

// refuses reports whether a limit applies to a run. Runs below all limits cost no lookup.
func (t *pathTable) refuses(r *underlay.Run) bool {
	size := r.LargestDatagram()
	if t == nil || !t.least.refuses(size, r.Segments) && (r.Segments == 1 || len(t.lost) == 0) {
		return false
	}
	l := t.limitOf(r)
	return l.refuses(size, r.Segments)
}

// pathLimits holds the limits of a Port, for all of its senders. While there is none, reading costs one atomic load.
type pathLimits struct {
	table atomic.Pointer[pathTable]         // nil for no limits
	mu    sync.Mutex                        // held to replace table, guards lost
	lost  map[underlay.Destination]struct{} // of the next table; replaced, not changed
	now   func() time.Time
}

// current returns the present limits, nil for none.
func (p *pathLimits) current() *pathTable {
	t := p.table.Load()
	if t == nil {
		return nil
	}
	now := p.now()
	if l := t.least.at(now); l == t.least { // the earliest limit has not ended
		return t
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.replace(now, func(map[underlay.Destination]pathLimit) {})
}

// withoutGSO returns the number of destinations without UDP GSO, and the number of those to which trains are lost.
func (p *pathLimits) withoutGSO() (refused, lost int) {
	if t := p.current(); t != nil {
		return t.withoutGSO, len(t.lost)
	}
	return 0, 0
}

// SetTrainsLost implements underlay.TrainLimiter.
func (p *Port) SetTrainsLost(to underlay.Destination, lost bool) bool {
	return p.paths.setLost(to, lost)
}

func (p *pathLimits) setLost(to underlay.Destination, lost bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch _, known := p.lost[to]; {
	case known == lost:
		return true
	case lost && len(p.lost) >= maxPathsLosingTrains:
		return false
	}
	next := map[underlay.Destination]struct{}{}
	maps.Copy(next, p.lost)
	if next[to] = struct{}{}; !lost {
		delete(next, to)
	}
	p.lost = next
	p.replace(p.now(), func(map[underlay.Destination]pathLimit) {})
	return true
}

// add notes the sizes of a refused train and of a refused datagram of a run, and returns the limits with them.
func (p *pathLimits) add(r *underlay.Run, train, datagram int) *pathTable {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, key := p.now(), r.To.Destination()
	if t := p.table.Load(); t != nil && t.isFull(key, now) {
		return t
	}
	return p.replace(now, func(limits map[underlay.Destination]pathLimit) {
		l, known := limits[key]
		if !known {
			makeRoom(limits, r.Peer)
			l = noLimit
			l.peer = r.Peer
		}
		l.train.note(train, now.Add(pathLifetime))
		l.datagram.note(datagram, now.Add(pathLifetime))
		limits[key] = l
	})
}

// makeRoom forgets the destination of a peer whose limits end first, if the peer has as many as it may have.
func makeRoom(limits map[underlay.Destination]pathLimit, peer uint16) {
	var first underlay.Destination
	n := 0
	for d, l := range limits {
		if peer == 0 || l.peer != peer {
			continue
		}
		if old := limits[first]; n == 0 || l.end().Before(old.end()) {
			first = d
		}
		n++
	}
	if n >= maxPathsOfPeer {
		delete(limits, first)
	}
}

// forgetDatagrams removes the limits of single datagrams.
func (p *pathLimits) forgetDatagrams() {
	if p.table.Load() == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replace(p.now(), func(limits map[underlay.Destination]pathLimit) {
		for d, l := range limits {
			if l.datagram = noLimit.datagram; l.ended() {
				delete(limits, d)
				continue
			}
			limits[d] = l
		}
	})
}

// isFull reports whether there is no room for a destination. To take another one's place would cost more, again and again, than a refused
// system call.
func (t *pathTable) isFull(key underlay.Destination, now time.Time) bool {
	if _, known := t.limits[key]; known || len(t.limits) < maxPaths {
		return false
	}
	for _, l := range t.limits {
		if l = l.at(now); l.ended() {
			return false
		}
	}
	return true
}

// replace stores and returns the limits that have not ended, after a change. The caller holds mu.
func (p *pathLimits) replace(now time.Time, change func(limits map[underlay.Destination]pathLimit)) *pathTable {
	next := &pathTable{limits: map[underlay.Destination]pathLimit{}, least: noLimit, lost: p.lost}
	if t := p.table.Load(); t != nil {
		for d, l := range t.limits {
			if l = l.at(now); !l.ended() {
				next.limits[d] = l
			}
		}
	}
	change(next.limits)
	for _, l := range next.limits {
		next.least.train.lower(l.train)
		next.least.datagram.lower(l.datagram)
		if l.train.bytes == 1 {
			next.withoutGSO++
		}
	}
	if len(next.limits)+len(next.lost) == 0 {
		next = nil
	}
	p.table.Store(next)
	return next
}

// limited reports whether a limit of its path applies to a run. Only then it reads the clock, once per call of Send: the limit may have
// ended.
func (s *sender) limited(r *underlay.Run) bool {
	if s.paths == nil || !s.paths.refuses(r) {
		return false
	}
	if s.pathsChecked {
		return true
	}
	s.paths, s.pathsChecked = s.port.paths.current(), true
	return s.paths.refuses(r)
}

// sendSingly sends the datagrams of the run of o, whose train was refused, and notes the limit. They have the source address again, even if
// the train was tried without it. EINVAL has many reasons: the train was the reason if the kernel accepts its datagrams. EIO means that UDP
// GSO is impossible: the device computes no checksums, or the route has IPsec.
func (s *sender) sendSingly(runs []underlay.Run, o origin, errno unix.Errno) {
	r := &runs[o.run]
	o.segment = 0
	s.queueSingly(&s.resend, runs, o)
	s.flush(&s.resend, runs) // records each error
	switch {
	case errno == unix.EIO:
		s.paths = s.port.paths.add(r, 1, unlimited)
	case r.Err == nil || r.Sent > 0:
		s.paths = s.port.paths.add(r, r.SegSize, unlimited)
	}
}
