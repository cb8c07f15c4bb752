// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// A check is a control message (wire.Check, sent like a hello) that leaves from one source port. In a round of checks one leaves from each
// source port in use and one from the listen port. The peer answers the latter with the ports whose checks it has received. So this device
// finds out which source ports the path drops (spread.Checks).

// checkRound is the time between two rounds of checks in ns. A blocked port is noticed in the fourth round after its last check that
// arrived: within a second. The peer answers at most eight rounds per second (rate).
const checkRound = int64(200 * time.Millisecond)

// After checkIdle ns without a round, the first data does not begin a round. Data that follows at least firstCheck ns later does. So of
// single packets that are far apart, every other one begins a round.
const (
	checkIdle  = int64(30 * time.Second)
	firstCheck = int64(50 * time.Millisecond)
)

// maxOwnRounds is the maximum number of rounds without data in a row: enough to find that a port is blocked.
const maxOwnRounds = 5

// checkState is what is known of the source ports of one peer. Peer.mu guards it.
type checkState struct {
	checks  *spread.Checks // of the sources of spread; nil before the first
	spread  *engine.Spread // the spread that lanes use
	answers bool           // the peer answers checks
	waiting bool           // data was sent after checkIdle, the next causes a round
	roundAt int64          // when the last round began; 0 for never
	ownAt   int64          // when the next round without data is due; 0 for none
	own     int            // the number of rounds without data in a row
}

// checkQueue takes a peer's checks, and its answers to ours, from lanes. It keeps the last of each only.
type checkQueue struct {
	answer atomic.Pointer[spreadAnswer] // nil when none waits for a worker
	due    atomic.Uint64                // the round to answer, shifted left by a bit that is set; 0 for none
	rate   rate                         // of our answers
	taken  rate                         // of the peer's answers

	mu       sync.Mutex
	receipts *spread.Receipts // of the peer's checks; nil before the first
}

// spreadAnswer is the answer to a round of checks.
type spreadAnswer struct {
	round uint32
	ages  []byte
}

// receiveCheck takes a check or an answer from a lane.
func (p *Peer) receiveCheck(plain []byte) drop.Reason {
	m := wire.Check{}
	if p.dev.spreading.Load().mode == config.SpreadOff {
		return drop.HelloUnwanted
	}
	err, q := wire.ParseCheck(plain, &m), p.requests.checkQueue()
	switch {
	case errors.Is(err, wire.ErrCheckVersion):
		return drop.HelloVersion
	case err != nil:
		return drop.HelloInvalid
	case m.Answer && !q.taken.allow(p.dev.clock(), time.Second):
		return drop.HelloUnwanted
	case m.Answer:
		q.answer.Store(&spreadAnswer{m.Round, append([]byte(nil), m.Ages...)})
	case m.Source != wire.ListenPortSource:
		q.note(m.Source, m.Round)
		return drop.None
	case !q.rate.allow(p.dev.clock(), time.Second):
		return drop.HelloUnwanted
	default:
		q.due.Store(uint64(m.Round)<<1 | 1)
	}
	p.post(taskCheck)
	return drop.None
}

// checkQueue returns the queue of checks, which the first use makes.
func (r *laneRequests) checkQueue() *checkQueue {
	if q := r.checks.Load(); q != nil {
		return q
	}
	r.checks.CompareAndSwap(nil, &checkQueue{})
	return r.checks.Load()
}

func (q *checkQueue) note(source int, round uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.receipts == nil {
		q.receipts = new(spread.Receipts)
	}
	q.receipts.Note(source, round)
}

func (q *checkQueue) ages(round uint32) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.receipts == nil {
		return nil
	}
	return q.receipts.AppendAges(nil, round)
}

// CheckSources implements engine.SlowPath.
func (p *Peer) CheckSources() { p.post(taskCheckSources) }

// handleChecks answers the peer's checks, and takes its answer to ours. The caller holds mu.
func (p *Peer) handleChecks(now int64) {
	q, c := p.requests.checkQueue(), p.checks
	keys := p.engine.Current.Load()
	if due := q.due.Swap(0); due != 0 && keys.Usable(now) {
		answer := wire.Check{Answer: true, Source: wire.ListenPortSource, Round: uint32(due >> 1)}
		answer.Ages = q.ages(answer.Round)
		p.dev.engine.SendHello(p.engine, keys, 0, wire.AppendCheck(nil, &answer))
	}
	a := q.answer.Swap(nil)
	if a == nil || c == nil || c.checks == nil {
		return
	}
	if c.checks.Answered(a.round, a.ages) {
		p.blockSources()
	}
	if c.checks.InDoubt() && c.own < maxOwnRounds {
		c.ownAt = c.roundAt + checkRound // the data that was lost may have been the last: a round without data follows
	}
}

// checkSources runs a round of checks, since data is sent. The caller holds mu.
func (p *Peer) checkSources(now int64) {
	c := p.checks
	if c == nil || c.spread == nil || !c.answers {
		return
	}
	age := now - c.roundAt
	switch {
	case c.roundAt != 0 && age < checkRound: // the last round was one of runChecks, or of other sources
		c.spread.CheckAt(c.roundAt + checkRound)
	case (c.roundAt == 0 || age > checkIdle) && !c.waiting:
		c.waiting = true
		c.spread.CheckAt(now + firstCheck)
	default:
		c.own = 0
		p.beginCheckRound(now)
	}
}

// runChecks runs a round of checks without data, if one is due. The caller holds mu.
func (p *Peer) runChecks(now int64) {
	c := p.checks
	if c == nil || c.ownAt == 0 || now < c.ownAt {
		return
	}
	c.ownAt = 0
	if c.spread != nil && c.answers {
		c.own++
		p.beginCheckRound(now)
	}
}

// nextCheck returns when runChecks is due, 0 for never. The caller holds mu.
func (p *Peer) nextCheck() int64 {
	if p.checks == nil {
		return 0
	}
	return p.checks.ownAt
}

// beginCheckRound sends the checks of a round. The caller holds mu.
func (p *Peer) beginCheckRound(now int64) {
	c, keys := p.checks, p.engine.Current.Load()
	c.waiting, c.roundAt, c.ownAt = false, now, 0
	c.spread.CheckAt(now + checkRound)
	if !keys.Usable(now) {
		return
	}
	c.checks.Begin()
	m := wire.Check{Round: c.checks.Round()}
	for i, source := range c.spread.Sources() {
		if m.Source = i; c.checks.Due(i, c.spread.InUse(i, now)) {
			p.dev.engine.SendHello(p.engine, keys, int(source), wire.AppendCheck(nil, &m))
		}
	}
	m.Source = wire.ListenPortSource // last, so that the answer reports the others
	p.dev.engine.SendHello(p.engine, keys, 0, wire.AppendCheck(nil, &m))
}

// startChecks begins to check the sources that lanes have been given. The caller holds mu.
func (p *Peer) startChecks() {
	s := p.engine.Spread.Load()
	if s != nil && len(s.Sources()) == 0 {
		s = nil
	}
	if p.checks == nil {
		if s == nil {
			return
		}
		p.checks = &checkState{}
	}
	c := p.checks
	answers := p.hello.known && p.hello.remote.Checks
	if s == c.spread && answers == c.answers {
		return
	}
	if s != c.spread && s != nil {
		round := rand.Uint32() // so that no answer to earlier checks fits
		c.checks = spread.NewChecks(len(s.Sources()), round)
	}
	c.spread, c.answers = s, answers
	if s != nil && answers {
		s.CheckAt(p.dev.clock())
	}
}

// blockSources has the flows of blocked sources leave from the listen port, and reports the change. The caller holds mu.
func (p *Peer) blockSources() {
	c := p.checks
	if c == nil || c.spread == nil || p.engine.Spread.Load() != c.spread {
		return
	}
	c.spread = c.spread.Blocked(c.checks.Blocked)
	p.engine.Spread.Store(c.spread)
	p.updateSpread()
	level := slog.LevelInfo
	if !p.path.spreadLog.allow(p.dev.clock(), time.Minute) {
		level = slog.LevelDebug
	}
	if blocked := p.path.spread.Blocked; len(blocked) > 0 {
		p.log().Log(context.Background(), level, "the path drops messages from some spread source ports, sending their flows from the listen port until checks arrive",
			"peer", p.key, "blocked_ports", len(blocked), "source_ports", len(c.spread.Sources()), "first_blocked_port", blocked[0])
		return
	}
	p.log().Log(context.Background(), level, "the path admits all spread source ports again, spreading over all of them", "peer", p.key)
}

// resumeBlocked blocks the source ports that the path did not admit before an upgrade in place, until checks arrive. The caller holds mu.
func (p *Peer) resumeBlocked(ports []uint16) {
	c, ref := p.checks, p.dev.port.Load()
	if c == nil || c.spread == nil || ref == nil {
		return
	}
	known := false
	for i, source := range c.spread.Sources() {
		if slices.Contains(ports, ref.Source(int(source))) {
			c.checks.Block(i)
			known = true
		}
	}
	if known {
		p.blockSources()
	}
}

// blockedPorts returns the source ports that the path to the peer does not admit. The caller holds mu.
func (p *Peer) blockedPorts() (ports []uint16) {
	c, ref := p.checks, p.dev.port.Load()
	if c == nil || c.spread == nil || ref == nil {
		return nil
	}
	for i, source := range c.spread.Sources() {
		if c.checks.Blocked(i) {
			ports = append(ports, ref.Source(int(source)))
		}
	}
	return ports
}
