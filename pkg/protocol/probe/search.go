// SPDX-License-Identifier: Apache-2.0

package probe

import "time"

// Times of a search, in ns.
const (
	// Timeout is the time after which a probe is sent again (PROBE_TIMER, RFC 8899 section 5.1.1).
	Timeout = int64(time.Second)
	// Pause is the minimum time between two probes. The peer limits the rate at which it answers.
	Pause = int64(250 * time.Millisecond)
	// RaiseAfter is the time after which a larger size is tried while data is sent (PMTU_RAISE_TIMER).
	RaiseAfter = int64(600 * time.Second)
	// RetryAfter is the time after which a path is tried again on which nothing was answered.
	RetryAfter = int64(60 * time.Second)

	// repeatTimeout is the timeout of the only probe in Repeating: after an outage a slow path must not look narrow.
	repeatTimeout = 3 * Timeout

	// doubtPause is the minimum time from the probe of a size until a loss causes another one.
	doubtPause = 4 * Timeout
)

// Tries is the number of probes of one size that are lost before it counts as too large (MAX_PROBES).
const Tries = 3

// State is the state of a search.
type State uint8

// The states of a search. The names of RFC 8899, section 5.2, are in parentheses.
const (
	Off         State = iota // no search: the peer answers no probes (DISABLED)
	Testing                  // the largest size is being tried; only the result of the search before limits data
	Alive                    // a large size was lost: is a small one answered? (BASE)
	Repeating                // a small one was: the large one once more, for the path may have been down for a moment
	Searching                // between a size that passes and a size that does not (SEARCHING)
	Raising                  // the search is complete, and a larger size is being tried
	Complete                 // the limit is known (SEARCH_COMPLETE)
	Unreachable              // no size is answered (ERROR)
	states      = iota
)

// String returns the state's name.
func (s State) String() string {
	return [states]string{"off", "testing", "alive", "repeating", "searching", "raising", "complete", "unreachable"}[s]
}

// Search is the search for one peer. The zero Search is Off. It has one user at a time.
type Search struct {
	state State
	sizes Sizes

	probe   Probe  // the last one sent, or the next to send
	first   uint32 // the ID of its first try
	tries   int
	waiting bool  // for its answer
	due     int64 // when the answer is late, or the next probe is due; 0 for never
	idle    bool  // due applies only while data is sent
	sentAt  int64 // when the last probe was returned

	low, high int  // low passes, high does not
	large     int  // the size whose loss began this search
	limit     int  // for data; 0 for none. It outlives Stop
	proven    bool // limit has been answered
	narrow    int  // the path on which limit was found: a larger size is tried there
	raiseAt   int64

	confirm int // the path on which limit must be tried, plus 1, 0 for none
}

// Start begins a new search. Identifiers continue, so answers to earlier probes do not count. The
// limit of an earlier search holds until the largest size is answered (RFC 8899, section 5.3.3):
// most peers return on the same path. A largest size below the largest of a complete search needs
// no probe: the size that passes the path is known.
func (s *Search) Start(now int64, sizes Sizes) {
	same := sizes
	if same.Max = s.sizes.Max; s.state == Complete && s.proven && s.sizes == same && sizes.Max < same.Max {
		s.sizes, s.low, s.limit = sizes, min(s.low, sizes.Max), min(s.limit, sizes.Max)
		if !s.waiting { // an answer on its way counts
			s.probe.Size = min(s.probe.Size, sizes.Max)
		}
		return
	}
	*s = Search{state: Testing, sizes: sizes, probe: s.next(), limit: s.limit, sentAt: s.sentAt}
	if s.limit >= sizes.Max {
		s.limit = 0
	}
	if s.sentAt > 0 { // a peer may cause many new searches
		now = max(now, s.sentAt+Pause)
	}
	s.try(now, sizes.Max)
}

// next returns a probe with the last ID.
func (s *Search) next() Probe { return Probe{ID: s.probe.ID} }

// Stop ends the search. It keeps the limit for Start.
func (s *Search) Stop() { *s = Search{probe: s.next(), limit: s.limit, sentAt: s.sentAt} }

// Resume gives a new Search the limit of an earlier one, as if that had been stopped.
func (s *Search) Resume(limit int) { s.limit = limit }

// State returns the present state.
func (s *Search) State() State { return s.state }

// Limit returns the largest size that data may have, 0 for no limit, and whether a probe of that size was answered.
func (s *Search) Limit() (size int, proven bool) { return s.limit, s.proven }

// dueAt returns when expire or ready has something to do, 0 for never. active reports whether data is being sent.
func (s *Search) dueAt(active bool) int64 {
	if s.idle && !active {
		return 0
	}
	return s.due
}

// expire continues after a lost probe, or with the work that waited for data.
func (s *Search) expire(now int64, active bool) {
	if at := s.dueAt(active); at == 0 || now < at {
		return
	}
	if s.idle {
		s.resume(now)
	}
	if s.waiting && s.tries >= Tries {
		s.lost(now)
	}
}

// ready reports whether a probe is due.
func (s *Search) ready(now int64) bool { return s.due != 0 && !s.idle && now >= s.due }

// take returns the probe that is due.
func (s *Search) take(now int64) Probe {
	s.probe.ID++
	if s.tries == 0 {
		s.first = s.probe.ID
	}
	s.tries++
	s.waiting, s.due, s.sentAt = true, now+Timeout, now
	if s.state == Repeating {
		s.due = now + repeatTimeout
	}
	return s.probe
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
// does it afterwards. However often Confirm is called, Pause is between two probes.
func (s *Search) Confirm(now int64, path int) {
	if s.state == Off {
		return
	}
	s.confirm = path + 1
	if s.state == Complete && !s.waiting && s.tries == 0 {
		s.rest(now)
	}
}

// doubt has the limit tried on a path, on which messages were lost. A search that is not complete finds out by itself, or changes the limit.
func (s *Search) doubt(now int64, path int) {
	if s.state == Complete && s.confirm == 0 && now-s.sentAt >= doubtPause {
		s.Confirm(now, path)
	}
}

// try makes a probe of a size due at the instant at.
func (s *Search) try(at int64, size int) {
	s.probe.Size = size
	s.tries, s.waiting, s.idle, s.due = 0, false, false, at
}

// pass goes on after the answer to a probe. at is the time of the next one.
func (s *Search) pass(at int64) {
	switch size := s.probe.Size; s.state {
	case Testing:
		s.low = size
		s.complete(at)
	case Alive:
		s.low, s.state = size, Repeating
		s.try(at, s.large)
		s.tries, s.first = Tries-1, s.probe.ID+1 // its loss suffices
	case Repeating:
		s.low = size
		s.complete(at)
	case Raising:
		s.low, s.limit, s.high, s.state = size, size, s.sizes.Max+1, Searching
		s.search(at)
	case Searching:
		s.low, s.limit, s.proven = size, size, true
		s.search(at)
	case Complete:
		s.resolved()
		s.rest(at)
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
		s.resolved()
		s.proven = false
		s.blackHole(at, size)
	case Unreachable:
		s.wait(at + RetryAfter)
	}
}

// blackHole asks whether the path carries small packets, after the loss of large ones.
func (s *Search) blackHole(at int64, size int) {
	s.state, s.large = Alive, min(size, s.sizes.Max)
	s.notAlive(at, min(size, s.sizes.Max+1)) // above: not searched. A smaller MTU may have come after the probe
}

// smaller returns the size to try after the loss of a larger one: the limit of the search before,
// the base, the floor; 0 for none.
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
		s.rest(at)
	default:
		s.state = Unreachable
		s.try(at, s.sizes.Floor)
		s.wait(at + RetryAfter)
	}
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
	s.complete(at)
}

// complete ends the search with the size low. Losses before tell nothing about it.
func (s *Search) complete(at int64) {
	s.state, s.limit, s.proven = Complete, s.low, true
	s.narrow, s.raiseAt = s.probe.Path, at+RaiseAfter
	s.rest(at)
}

// resolved notes that the limit was tried on the path of the last probe.
func (s *Search) resolved() {
	if s.confirm == s.probe.Path+1 {
		s.confirm = 0
	}
}

// rest waits for the next doubt, or until a larger size may be tried.
func (s *Search) rest(at int64) {
	if s.confirm > 0 {
		s.probe.Path = s.confirm - 1
		s.try(max(at, s.sentAt+Pause), s.limit)
		return
	}
	if s.wait(0); s.limit < s.sizes.Max {
		s.due = max(at, s.raiseAt)
	}
}

// wait waits until an instant, and then until data is sent.
func (s *Search) wait(at int64) {
	s.tries, s.waiting, s.idle, s.due = 0, false, true, at
}

// resume begins the work that waited for data.
func (s *Search) resume(now int64) {
	s.idle = false
	if s.state != Complete {
		return
	}
	if s.limit >= s.sizes.Max || now < s.raiseAt {
		s.rest(now)
		return
	}
	s.state, s.raiseAt, s.probe.Path = Raising, now+RaiseAfter, s.narrow
	s.try(now, s.sizes.above(s.limit))
}
