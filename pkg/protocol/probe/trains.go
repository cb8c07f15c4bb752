// SPDX-License-Identifier: Apache-2.0

package probe

import "github.com/ropewalk/ropewalk/pkg/protocol/wire"

const (
	// trainID is set in the identifiers of tests of trains. A search counts from 1 and never gets there. Single
	// messages have singleID too.
	trainID  = 1 << 30
	singleID = 1 << 29
	// trainTokens is the cost of a train in tokens: it has two messages.
	trainTokens = 2
	// trainTries is the number of trains in a round that are lost before a single message is sent.
	trainTries = 2
	// trainRounds is the number of rounds after which trains count as lost. One is not enough: an outage may end between the
	// trains and the single message.
	trainRounds = 2
)

// trainState is the state of a test of trains.
type trainState uint8

const (
	trainsUntested  trainState = iota // the test begins when the search is complete
	trainsTesting                     // a train was sent
	trainsComparing                   // the round's trains were lost: is a single message of their size answered?
	trainsTested                      // until the next test
)

// trains finds out whether a train that the kernel or the device divides (UDP_SEGMENT) arrives as well as a single message.
// Linux 7.0 to 7.1-rc4 send trains of equal datagrams with a wrong length in each UDP header through devices that segment
// UDP by GSO_PARTIAL (commit b10b446ce7ad). A hypervisor does the same to its guests' trains. A host cannot see this: the
// loopback has no such device, and nothing reports an error. So the test is two messages of one size on the path to the
// peer. The second one asks for the answer. Trains are lost if no train of a test is answered, and the first single message of
// two rounds is. The zero trains is off.
type trains struct {
	enabled bool // the underlay sends trains
	state   trainState
	lost    bool   // the last result
	sent    uint32 // messages that ask for an answer; an identifier has the number of its message
	first   uint32 // the number of the test's first one
	single  uint32 // the number of the round's first single one
	tries   int    // trains of the round, or single messages
	rounds  int    // in which the first single message was answered
	waiting bool
	due     int64  // when the answer is late, or the next test begins
	idle    bool   // due applies only while data is sent
	ended   int64  // when the last test ended
	data    uint64 // Sent.Data then
}

// EnableTrains has the prober test whether trains arrive, or ends that.
func (p *Prober) EnableTrains(on bool) {
	if t := &p.trains; t.enabled != on {
		*t = trains{enabled: on, sent: t.sent}
	}
}

// TrainsLost reports whether trains are lost on the path.
func (p *Prober) TrainsLost() bool { return p.trains.lost }

// TrainsAnswered notes the answer to a probe. concluded reports that a test has ended: TrainsLost has its result. ok is false
// for an answer to another probe.
func (p *Prober) TrainsAnswered(now int64, id uint32) (concluded, ok bool) {
	t := &p.trains
	single, number := id&singleID != 0, id&^(trainID|singleID)
	switch {
	case id&trainID == 0:
		return false, false
	case t.state != trainsTesting && t.state != trainsComparing || number < t.first || number > t.sent:
		return false, true
	case !single:
		t.lost = false
		t.end(now, 0)
		return true, true
	case t.state == trainsTesting || number < t.single:
		return false, true
	}
	if number == t.single { // else an outage has ended between
		t.rounds++
	}
	if t.rounds < trainRounds {
		t.state, t.waiting, t.tries, t.due = trainsTesting, false, 0, now+Pause
		return false, true
	}
	t.lost = true
	t.end(now, now+RaiseAfter)
	return true, true
}

// doubtTrains requests a test: messages are missing. If trains are lost, no data leaves in them, but messages of tests.
func (p *Prober) doubtTrains() {
	if !p.trains.lost {
		p.RetestTrains()
	}
}

// RetestTrains requests a test: routes have changed. It begins while data is sent, and at most once in
// RetryAfter.
func (p *Prober) RetestTrains() {
	if t := &p.trains; t.state == trainsTested {
		t.due, t.idle = t.ended+RetryAfter, true
	}
}

// end ends a test. The next one begins at an instant, 0 for none, and then when data is sent.
func (t *trains) end(now, next int64) {
	t.state, t.waiting, t.due, t.idle, t.ended = trainsTested, false, next, true, now
}

// trainsDueAt returns when to continue a test or to begin one, 0 for never. A search that is not complete comes first.
func (p *Prober) trainsDueAt(tx *Sent) int64 {
	t := &p.trains
	switch {
	case !t.enabled || t.state == trainsUntested && p.state != Complete:
		return 0
	case t.state == trainsUntested:
		return max(t.due, p.sentAt)
	case t.idle && !p.active(tx.Data-t.data):
		return 0
	}
	return t.due
}

// testTrains continues the test of trains.
func (p *Prober) testTrains(now int64, tx *Sent) {
	t := &p.trains
	at := p.trainsDueAt(tx)
	if at == 0 || now < at {
		return
	}
	switch {
	case t.state == trainsUntested || t.state == trainsTested:
		t.state, t.waiting, t.tries, t.rounds, t.first = trainsTesting, false, 0, 0, t.sent+1
	case t.tries < t.mostTries():
	case t.state == trainsTesting:
		t.state, t.waiting, t.tries, t.single = trainsComparing, false, 0, t.sent+1
	default: // nothing was answered: the search is about that
		t.end(now, now+RetryAfter)
		return
	}
	p.sendTrain(now, tx)
}

// sendTrain adds the next train, or the single message, to the batch, if there are tokens for it.
func (p *Prober) sendTrain(now int64, tx *Sent) {
	t := &p.trains
	t.idle, t.due = false, now
	if !p.budget.has(forSizes + trainTokens - 1) {
		return
	}
	p.budget.take(forSizes)
	train := t.state == trainsTesting
	if train {
		p.budget.take(forSizes)
	}
	t.sent++
	t.tries++
	t.waiting, t.due, t.data = true, now+Timeout, tx.Data
	id := trainID | t.sent
	if !train {
		id |= singleID
	}
	p.batch = append(p.batch, Probe{Kind: wire.ProbeSize, ID: id, Size: p.sizes.Floor, Train: train})
}

// mostTries returns the number of tries in the present state.
func (t *trains) mostTries() int {
	if t.state == trainsTesting {
		return trainTries
	}
	return Tries
}

// nextTrain returns when to call Fire for the test of trains, 0 for never.
func (p *Prober) nextTrain(now int64, tx *Sent) int64 {
	at := p.trainsDueAt(tx)
	if at == 0 || p.trains.waiting && p.trains.tries >= p.trains.mostTries() {
		return at
	}
	return max(at, p.budget.ready(max(now, at), forSizes+trainTokens-1))
}
