// SPDX-License-Identifier: Apache-2.0

package pathmtu

import "time"

// Times of a search, in ns.
const (
	// Timeout is the time after which a probe is sent again (PROBE_TIMER, RFC 8899 section 5.1.1).
	Timeout = int64(time.Second)
	// Pause is the minimum time between two probes. The peer limits the rate at which it answers.
	Pause = int64(250 * time.Millisecond)
	// ConfirmAfter is the time after which a size is confirmed again on a path while data is sent (CONFIRMATION_TIMER). With more than
	// ten paths it is a second for each.
	ConfirmAfter = int64(10 * time.Second)
	// RaiseAfter is the time after which a larger size is tried while data is sent (PMTU_RAISE_TIMER).
	RaiseAfter = int64(600 * time.Second)
	// RetryAfter is the time after which a path is tried again on which nothing was answered.
	RetryAfter = int64(60 * time.Second)

	// pollAfter is the time after which a search that waits for data looks once more whether some was sent, before it waits for its owner.
	pollAfter = int64(2 * time.Second)

	// repeatTimeout is the timeout of the only probe in Repeating: after an outage a slow path must not look narrow.
	repeatTimeout = 3 * Timeout
)

// Tries is the number of probes of one size that are lost before it counts as too large (MAX_PROBES).
const Tries = 3

// State is the state of a search.
type State uint8

// The states of a search. The names of RFC 8899, section 5.2, are in parentheses.
const (
	Off         State = iota // no search: the peer answers no probes (DISABLED)
	Testing                  // the largest size is being tried; data is limited only by what the search before had found
	Alive                    // a large size was lost: is a small one answered? (BASE)
	Repeating                // a small one was: the large one once more, for the path may have been down for a moment
	Searching                // sizes between one that passes and one that does not (SEARCHING)
	Raising                  // the search is complete, and a larger size is being tried
	Complete                 // the limit is known (SEARCH_COMPLETE)
	Unreachable              // no size is answered (ERROR)
	states      = iota
)

// String returns the state's name.
func (s State) String() string {
	return [states]string{"off", "testing", "alive", "repeating", "searching", "raising", "complete", "unreachable"}[s]
}

// Probe is a message to send: a packet of Size bytes that routers do not fragment, on path number Path.
type Probe struct {
	ID   uint32
	Size int
	Path int
}

// Search is the search for one peer. The zero Search is Off. It has one user at a time.
type Search struct {
	state State
	sizes Sizes
	paths int                 // number of paths
	skips func(path int) bool // see SkipPaths; nil for none

	probe   Probe  // the last one sent, or the next to send
	first   uint32 // the ID of its first try
	tries   int
	unsent  int   // tries that could not be sent
	waiting bool  // for its answer
	due     int64 // when the answer is late, or the next probe is due; 0 for never
	idle    bool  // due applies only while data is sent
	pollAt  int64 // while idle: when to check once whether data is sent; 0 for never
	sentAt  int64 // when the last probe was returned

	low, high int  // low passes, high does not
	large     int  // the size whose loss began this search
	limit     int  // for data; 0 for none. It outlives Stop
	proven    bool // limit has been answered
	unchecked int  // paths on which low has not passed yet
	checking  bool // they are tried one after the other, whether data is sent or not
	confirm   int  // the path of Confirm, plus 1, while the answer of another one is on its way; 0 for none
	held      bool // low may become the limit once it has passed on all paths
	raiseAt   int64
}

// Start begins a new search over a number of paths. Identifiers continue, so answers to earlier probes do not count. The limit of
// an earlier search holds until the largest size is answered (RFC 8899, section 5.3.3): most peers return on the same path.
func (s *Search) Start(now int64, sizes Sizes, paths int) {
	*s = Search{state: Testing, sizes: sizes, paths: max(paths, 1), probe: Probe{ID: s.probe.ID}, limit: s.limit, sentAt: s.sentAt}
	if s.limit >= sizes.Max {
		s.limit = 0
	}
	if s.sentAt > 0 { // a peer may cause many new searches
		now = max(now, s.sentAt+Pause)
	}
	s.try(now, sizes.Max)
}

// Shrink replaces the sizes of a search that is complete by those with a smaller largest one. What passes the path is known, so no probe is
// needed. It reports false if a new search must Start.
func (s *Search) Shrink(sizes Sizes) bool {
	same := sizes
	same.Max = s.sizes.Max
	if s.state != Complete || !s.proven || s.held || s.sizes != same || sizes.Max > s.sizes.Max {
		return false
	}
	s.sizes = sizes
	s.low, s.limit = min(s.low, sizes.Max), min(s.limit, sizes.Max)
	if !s.waiting { // an answer on its way counts
		s.probe.Size = min(s.probe.Size, sizes.Max)
	}
	return true
}

// SkipPaths sets a function that reports whether to leave out a path, other than path 0, when the paths take turns: no probe would be
// answered there. It holds until Start or Stop.
func (s *Search) SkipPaths(skips func(path int) bool) { s.skips = skips }

// Stop ends the search. It keeps the limit for Start.
func (s *Search) Stop() { *s = Search{probe: Probe{ID: s.probe.ID}, limit: s.limit, sentAt: s.sentAt} }

// Resume gives a new Search the limit of an earlier one, as if that had been stopped.
func (s *Search) Resume(limit int) { s.limit = limit }

// State returns the present state.
func (s *Search) State() State { return s.state }

// Limit returns the largest size that data may have, 0 for no limit, and whether a probe of that size was answered.
func (s *Search) Limit() (size int, proven bool) { return s.limit, s.proven }

// Next returns when to call Fire, 0 for never. active reports whether data is being sent.
func (s *Search) Next(active bool) int64 {
	if s.idle && !active {
		return s.pollAt
	}
	return s.due
}

// Fire returns the probe that is due at now, if any.
func (s *Search) Fire(now int64, active bool) (p Probe, ok bool) {
	if at := s.Next(active); at == 0 || now < at {
		return Probe{}, false
	}
	if s.idle && !active {
		s.pollAt = 0
		return Probe{}, false
	}
	if s.idle {
		s.resume(now)
	}
	if s.waiting && s.tries >= Tries {
		s.lost(now)
	}
	if s.due == 0 || s.idle || now < s.due {
		return Probe{}, false
	}
	s.probe.ID++
	if s.tries == 0 {
		s.first = s.probe.ID
	}
	s.tries++
	s.waiting, s.due, s.sentAt = true, now+Timeout, now
	if s.state == Repeating {
		s.due = now + repeatTimeout
	}
	return s.probe, true
}

// Answered notes that a probe has arrived with the given size. It returns the number of its path, and false for an answer to an earlier
// probe.
func (s *Search) Answered(now int64, id uint32, size int) (path int, ok bool) {
	if !s.waiting || size != s.probe.Size || id-s.first > s.probe.ID-s.first {
		return 0, false
	}
	path, s.waiting = s.probe.Path, false
	s.pass(now + Pause)
	return path, true
}

// Confirm has the limit tried on a path at once: somebody says that it is smaller (RFC 8899, section 4.6.2). A search that is not complete
// finds out by itself. However often Confirm is called, Pause is between two probes.
func (s *Search) Confirm(now int64, path int) {
	if s.state != Complete || s.held || path >= s.paths {
		return
	}
	s.confirm = path + 1
	if !s.waiting {
		s.check(max(now, s.sentAt+Pause))
	}
}

// Refused notes that the host itself cannot send packets of this size: the next device is too small.
func (s *Search) Refused(now int64, size int) {
	if s.waiting && size == s.probe.Size {
		s.lost(now + Pause)
	}
}

// Unsent notes that the last probe of Fire was not sent, for a reason that says nothing about its size. After some of these the search
// waits for data.
func (s *Search) Unsent(now int64) {
	if !s.waiting {
		return
	}
	s.tries--
	s.unsent++
	if s.waiting, s.due = s.tries > 0, now+Timeout; s.unsent >= Tries {
		s.wait(now + RetryAfter)
	}
}

// Retry notes that the peer answers something else. A path on which no probe was answered is tried again.
func (s *Search) Retry(now int64) {
	if s.state == Unreachable && !s.waiting {
		s.try(now, s.sizes.Floor)
	}
}

// SetPaths sets the number of paths, and checks the limit on new ones. A path that is due is tried before them.
func (s *Search) SetPaths(now int64, paths int) {
	paths = max(paths, 1)
	if paths == s.paths {
		return
	}
	if due := s.state == Complete && !s.idle && !s.waiting; due && s.confirm == 0 {
		s.confirm = s.probe.Path + 1
	}
	if s.confirm > paths {
		s.confirm = 0
	}
	more := paths > s.paths
	s.paths, s.probe.Path = paths, s.probe.Path%paths
	if s.state != Complete || !more {
		return
	}
	if s.unchecked = paths; !s.waiting { // else the answer goes on
		s.check(max(now, s.sentAt+Pause))
	}
}

// try makes a probe of a size due at the instant at.
func (s *Search) try(at int64, size int) {
	s.probe.Size = size
	s.tries, s.unsent, s.waiting, s.idle, s.pollAt, s.due = 0, 0, false, false, 0, at
}

// tryOnce is try for a size that counts as too large after the loss of one probe.
func (s *Search) tryOnce(at int64, size int) {
	s.try(at, size)
	s.tries, s.first = Tries-1, s.probe.ID+1
}

// pass goes on after the answer to a probe. at is the time of the next one.
func (s *Search) pass(at int64) {
	switch size := s.probe.Size; s.state {
	case Testing:
		s.low = size
		s.complete(at)
	case Alive:
		s.low, s.state = size, Repeating
		s.tryOnce(at, s.large)
	case Repeating:
		s.low = size
		s.complete(at)
	case Raising:
		s.low, s.high, s.held, s.state = size, s.sizes.Max+1, true, Searching
		s.search(at)
	case Searching:
		s.low = size
		if !s.held {
			s.limit, s.proven = size, true
		}
		s.search(at)
	case Complete:
		s.unchecked--
		s.check(at)
	case Unreachable:
		s.state = Testing
		s.try(at, s.sizes.Max)
	}
}

// lost goes on after the loss of all probes of a size. at is the time of the next one.
func (s *Search) lost(at int64) {
	size := s.probe.Size
	s.waiting = false
	switch s.state {
	case Testing:
		s.blackHole(at, size)
	case Alive:
		s.notAlive(at, size)
	case Repeating:
		s.limit, s.proven, s.state = s.low, true, Searching
		s.search(at)
	case Searching:
		s.high = size
		s.search(at)
	case Raising:
		s.state = Complete
		s.rest(at)
	case Complete:
		s.notConfirmed(at, size)
	case Unreachable:
		s.wait(at + RetryAfter)
	}
}

// blackHole asks whether the path carries small packets, after the loss of large ones.
func (s *Search) blackHole(at int64, size int) {
	s.state, s.large, s.confirm = Alive, min(size, s.sizes.Max), 0
	s.notAlive(at, min(size, s.sizes.Max+1)) // above: not searched. Shrink may have come after the probe
}

// smaller returns the size to try after the loss of a larger one: that of the search before, the base, the floor; 0 for none.
func (s *Search) smaller(size int) int {
	for _, next := range [...]int{s.limit, s.sizes.base(), s.sizes.Floor} {
		if next < size && next >= s.sizes.Floor {
			return next
		}
	}
	return 0
}

// notAlive continues with a smaller size. If even the floor is lost, the loss says nothing about sizes.
func (s *Search) notAlive(at int64, size int) {
	next := s.smaller(size)
	switch {
	case next > 0:
		s.high = size
		s.try(at, next)
	case s.probe.Path > 0: // other paths carry packets: this port is filtered
		s.state, s.proven = Complete, true
		s.unchecked--
		s.check(at)
	default:
		s.state, s.checking = Unreachable, false
		s.try(at, s.sizes.Floor)
		s.wait(at + RetryAfter)
	}
}

// notConfirmed searches again on the path where the limit was lost, or a larger size that is not in use yet.
func (s *Search) notConfirmed(at int64, size int) {
	if s.held { // this path may carry less than the one where that was found, and still more than the limit
		s.low, s.high, s.state = s.limit, size, Searching
		s.search(at)
		return
	}
	s.proven = false
	s.blackHole(at, size)
}

// search tries the next size between low and high, or completes the search.
func (s *Search) search(at int64) {
	high := s.high
	if size := s.sizes.between(s.low, high); size > 0 {
		s.try(at, size)
		return
	}
	if high > s.sizes.Max && s.low < s.sizes.Max {
		s.try(at, s.sizes.Max)
		return
	}
	if s.held && s.low == s.limit { // no larger size passes
		s.held, s.state = false, Complete
		s.rest(at)
		return
	}
	s.complete(at)
}

// complete ends the search on one path with the size low, and checks the others.
func (s *Search) complete(at int64) {
	s.state = Complete
	if !s.held {
		s.limit, s.proven = s.low, true
	}
	s.unchecked, s.raiseAt = s.paths-1, at+RaiseAfter
	s.check(at)
}

// check makes the size low be tried on the next path where it has not passed yet. The first of these paths is tried when data is sent, and the
// others at once: until then data on them may be lost.
func (s *Search) check(at int64) {
	switch {
	case s.confirm > 0 && !s.held:
		s.tryConfirmed(at)
	case s.unchecked <= 0:
		s.held, s.limit = false, s.low
		s.rest(at)
	case s.held || s.checking: // at once: a larger size may be in use only afterwards
		s.tryNextPath(at)
	default:
		s.wait(at)
		s.pollAt = at + pollAfter // data may follow its session
	}
}

// tryConfirmed makes the size low be tried on the path of Confirm. Other paths that must be tried follow from there.
func (s *Search) tryConfirmed(at int64) {
	s.probe.Path, s.confirm = s.confirm-1, 0
	if s.unchecked > 0 {
		s.unchecked = s.paths
	}
	s.unchecked = max(s.unchecked, 1)
	s.try(at, s.low)
}

// tryNextPath makes the size low be tried on another path.
func (s *Search) tryNextPath(at int64) {
	s.probe.Path = (s.probe.Path + 1) % s.paths
	for s.skipped(s.probe.Path) {
		s.probe.Path = (s.probe.Path + 1) % s.paths
		s.unchecked--
	}
	s.try(at, s.low)
}

func (s *Search) skipped(path int) bool { return path > 0 && s.skips != nil && s.skips(path) }

// turns returns the number of paths that take turns.
func (s *Search) turns() (n int64) {
	for path := range s.paths {
		if !s.skipped(path) {
			n++
		}
	}
	return n
}

// rest waits until the limit must be confirmed. The paths take turns, so that each is confirmed about once per period.
func (s *Search) rest(at int64) {
	s.unchecked, s.checking = 0, false
	s.wait(at + max(ConfirmAfter/s.turns(), Timeout))
}

// wait waits until an instant, and then until data is sent.
func (s *Search) wait(at int64) {
	s.tries, s.unsent, s.waiting, s.idle, s.pollAt, s.due = 0, 0, false, true, 0, at
}

// resume begins the work that waited for data.
func (s *Search) resume(now int64) {
	s.idle = false
	if s.state != Complete {
		return
	}
	if s.limit < s.sizes.Max && s.unchecked <= 0 && now >= s.raiseAt {
		s.state = Raising
		s.raiseAt = now + RaiseAfter
		s.try(now, s.sizes.above(s.limit))
		return
	}
	s.checking, s.unchecked = s.unchecked > 0, max(s.unchecked, 1)
	s.tryNextPath(now)
}
