// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// askEvery is the time between two requests while flows are spread, and slowlyEvery while none are: then a report tells about the path MTU
	// alone.
	askEvery    = int64(300 * time.Millisecond)
	slowlyEvery = int64(4 * time.Second)
	// doubtEvery is that while messages are missing, and the time after the first message before the request.
	doubtEvery = int64(150 * time.Millisecond)
	// mostMisses is the number of reports in a row that have none of a port's messages before the port is blocked.
	mostMisses = 3
	// mostPatience bounds port.patience.
	mostPatience = 3 * mostMisses
	// missingShare is the part of the messages of a report that raise doubts when they are missing, as a divisor.
	missingShare = 8
	// minRetry is the time from the block of a port to the probe that tests it again. It doubles up to maxRetry.
	minRetry = int64(time.Second)
	maxRetry = int64(64 * time.Second)
	// retryPorts is the number of blocked ports that are tested at once, and testPorts the number
	// of doubted ports.
	retryPorts = 4
	testPorts  = 8
	// activeMessages is the number of messages of the largest size after which data is being sent.
	activeMessages = 3
)

// Probe is a message to send on path number Path. Routers do not fragment it.
type Probe struct {
	Kind wire.ProbeKind
	ID   uint32
	Size int // of the IP packet, for wire.ProbeSize
	Path int
	// Train has a wire.ProbePort of the same size sent before the probe, in one train.
	Train bool
}

// Sent is the number of messages sent to the peer so far.
type Sent struct {
	All  uint32   // on all paths, modulo 2^32
	On   []uint32 // on each path, modulo 2^32
	Data uint64   // bytes of messages with inner packets
}

// Report is the number of messages that the peer has received.
type Report struct {
	ID uint32
	On []uint32 // on each path, modulo 2^32
	// Counted says that the peer counts messages from source ports.
	Counted bool
}

// Prober tests the paths to one peer. The zero Prober is off, as its Search. It has one user at a time.
type Prober struct {
	Search
	trains trains
	budget budget
	ports  []port // of each path
	batch  []Probe

	asking  bool // for the report of the last request
	askID   uint32
	askedAt int64
	gap     bool   // the last request was not answered
	urgent  bool   // a request must follow, and may use the reserve
	strict  bool   // the next report raises doubts about each message that is missing
	tested  bool   // doubted ports were tested since the last request
	since   int64  // when messages were seen first that no request covers, 0 for none
	data    uint64 // Sent.Data at the last request
	sized   uint64 // Sent.Data at the last probe of a size

	silent  int    // reports in a row that miss messages, and have none of any source
	all     bool   // all sources are blocked, until a message from one arrives
	retryAt int64  // when blocked ports are tested again
	pause   int64  // before retryAt
	retried uint64 // Sent.Data at the last of these tests
	turn    int    // of the ports that are tested
}

// port counts the messages of one path. Counts are modulo 2^32.
type port struct {
	received uint32 // by the peer, in the last report
	settled  uint32 // sent, and known to have arrived or to be lost
	asked    uint32 // sent before the last request
	lost     uint32 // counted as lost, and not arrived since
	misses   int    // reports in a row that have none of the messages sent before the request
	patience int    // further misses before the port is blocked: it has been, and messages arrived that had counted as lost
	partial  bool   // some messages were missing in the last report, and others had arrived
	blocked  bool   // the path drops what leaves from it: flows leave from the listen port
}

// report takes the number of received messages from a report. sent is the number of those sent by now. It returns how many have arrived since
// the last report, how many of these had counted as lost, and how many are missing. forgive says that none is.
func (x *port) report(received, sent uint32, forgive bool) (arrived, late, missing int32) {
	arrived = int32(received - x.received)
	late = max(arrived-int32(sent-x.settled), 0)
	if x.received = received; arrived < 0 || uint32(late) > x.lost { // of another process, or of another list of ports
		x.settled, x.lost = x.asked, 0
		return 0, 0, 0
	}
	x.settled, x.lost = x.settled+uint32(arrived-late), x.lost-uint32(late)
	if missing = int32(x.asked - x.settled); missing <= 0 {
		return arrived, late, 0
	}
	if x.settled, x.lost = x.asked, x.lost+uint32(missing); forgive {
		missing = 0
	}
	return arrived, late, missing
}

// Start begins a new search. See Search.Start.
func (p *Prober) Start(now int64, sizes Sizes) {
	if len(p.ports) == 0 {
		p.SetSources(0)
	}
	if p.Search.Start(now, sizes); p.state != Complete {
		p.trains = trains{enabled: p.trains.enabled, sent: p.trains.sent}
	}
}

// SetSources sets the number of source ports, which are other ones than before.
func (p *Prober) SetSources(n int) {
	p.ports = make([]port, 1+n)
	p.silent, p.all, p.since, p.asking = 0, false, 0, false
	if p.probe.Path, p.narrow = 0, 0; p.confirm > 1 {
		p.confirm = 0
	}
}

// Refill permits a new burst of probes, and tests of blocked ports at once: the path is another one.
func (p *Prober) Refill() { p.budget, p.retryAt, p.pause = budget{}, 0, minRetry }

// Unanswered notes that the peer has not answered data: each message that is missing counts.
func (p *Prober) Unanswered() {
	p.urgent, p.strict = true, true
	p.doubtTrains()
}

// Block blocks a source until a message from it arrives, or from any if all are blocked.
func (p *Prober) Block(now int64, source int) {
	p.ports[1+source].blocked = true
	if !slices.ContainsFunc(p.ports[1:], func(x port) bool { return !x.blocked }) {
		p.blockAll()
	}
	p.retryAt, p.pause = now+minRetry, minRetry
}

// blockAll blocks all sources until a message from any arrives. Nothing is concluded about each of them meanwhile.
func (p *Prober) blockAll() {
	p.all, p.silent = true, 0
	for i := range p.ports {
		p.ports[i].blocked, p.ports[i].misses = false, 0
	}
}

// Blocked reports whether the path does not admit a source.
func (p *Prober) Blocked(source int) bool {
	return p.all || 1+source < len(p.ports) && p.ports[1+source].blocked
}

// Fire returns the probes that are due, in the order in which to send them. The result is valid until the next call.
func (p *Prober) Fire(now int64, tx *Sent) []Probe {
	p.batch = p.batch[:0]
	p.budget.refill(now, tx.All)
	if p.state == Off {
		return nil
	}
	p.expire(now, p.active(tx.Data-p.sized))
	if p.ready(now) && p.budget.take(0) {
		p.batch = append(p.batch, p.take(now))
		p.sized = tx.Data
	}
	p.testTrains(now, tx)
	p.testDoubted(now)
	p.retry(now, tx)
	p.ask(now, tx)
	return p.batch
}

// active reports whether so many bytes are more than a few messages.
func (p *Prober) active(bytes uint64) bool { return bytes >= uint64(activeMessages*p.sizes.Max) }

// testDoubted tests doubted ports before the next request, and once another one: are all blocked?
func (p *Prober) testDoubted(now int64) {
	if p.asking || p.gap || p.tested || !p.doubting() {
		return
	}
	p.tested, p.since = true, now
	other := p.silent == 1
	p.test(testPorts, func(path int) bool {
		x := &p.ports[path]
		if x.doubted() || x.blocked || !other {
			return x.doubted()
		}
		other = false
		return true
	})
}

// retry tests some of the blocked ports while data is sent.
func (p *Prober) retry(now int64, tx *Sent) {
	if at := p.nextRetry(now, tx); at == 0 || now < at {
		return
	}
	p.test(retryPorts, func(i int) bool { return p.Blocked(i - 1) })
	p.retried, p.urgent, p.pause = tx.Data, true, min(2*p.pause, maxRetry)
	p.retryAt, p.since = now+p.pause, now
}

// nextRetry returns when blocked ports are tested again, 0 for never.
func (p *Prober) nextRetry(now int64, tx *Sent) int64 {
	if tx.Data == p.retried || !p.all && !slices.ContainsFunc(p.ports, func(x port) bool { return x.blocked }) {
		return 0
	}
	return max(p.retryAt, p.budget.ready(now, forSizes))
}

// test adds probes from up to most sources that are chosen. They take turns.
func (p *Prober) test(most int, choose func(path int) bool) {
	for left := len(p.ports) - 1; left > 0 && most > 0; left-- {
		p.turn++
		if path := 1 + p.turn%(len(p.ports)-1); choose(path) && p.budget.take(forSizes) {
			p.batch = append(p.batch, Probe{Kind: wire.ProbePort, Path: path})
			most--
		}
	}
}

// doubted reports whether messages of a port are missing, so that it may be blocked.
func (x *port) doubted() bool { return x.misses > 0 && !x.blocked }

func (p *Prober) doubting() bool {
	return slices.ContainsFunc(p.ports, func(x port) bool { return x.doubted() })
}

// ask adds the request for a report if one is due.
func (p *Prober) ask(now int64, tx *Sent) {
	if p.asking {
		if now < p.askedAt+Timeout {
			return
		}
		p.asking, p.gap, p.urgent, p.strict = false, true, false, false
	}
	at, keep, _ := p.nextRequest(now, tx)
	if at == 0 {
		p.since = 0
		return
	}
	if p.since == 0 {
		p.since = now
	}
	if now < at || !p.budget.take(keep) {
		return
	}
	for i := range p.ports {
		p.ports[i].asked = tx.On[i]
	}
	p.askID++
	p.asking, p.askedAt, p.since, p.data, p.tested = true, now, 0, tx.Data, false
	p.batch = append(p.batch, Probe{Kind: wire.ProbeRequest, ID: p.askID})
}

// nextRequest returns when the next request is due, 0 for never, and the number of tokens that it
// leaves. waiting is the number of sources whose messages wait for it. A request for the first
// messages of a port may use more tokens.
func (p *Prober) nextRequest(now int64, tx *Sent) (at, keep int64, waiting uint32) {
	since := cmp.Or(p.since, now)
	keep = reserve
	for i := 1; i < len(p.ports); i++ {
		if x := &p.ports[i]; x.asked != tx.On[i] {
			waiting++
			if x.received == 0 {
				keep = firstUse
			}
		}
	}
	switch {
	case p.urgent || !p.gap && p.doubting():
		return max(p.askedAt, since) + doubtEvery, forSizes, waiting
	case waiting > 0:
		return max(p.askedAt+askEvery, since+doubtEvery), keep, waiting
	case p.active(tx.Data - p.data):
		return p.askedAt + slowlyEvery, keep, 0
	}
	return 0, 0, 0
}

// Reported takes a report. It reports whether a source was blocked or opened. Without the answer
// to a request nothing is concluded from the messages sent before it.
func (p *Prober) Reported(now int64, r *Report, tx *Sent) (changed bool) {
	if !p.asking || r.ID != p.askID || len(r.On) != len(p.ports) || len(tx.On) != len(p.ports) {
		return false
	}
	gap, strict, anyArrived, anyMissing := p.gap, p.strict, false, false
	p.asking, p.gap, p.urgent, p.strict = false, false, false, false
	for i := range p.ports {
		x := &p.ports[i]
		if gap || i > 0 && !r.Counted {
			x.misses = 0
		}
		arrived, late, missing := x.report(r.On[i], tx.On[i], gap || i > 0 && !r.Counted)
		partial := arrived > 0 && missing > 0
		if (partial && x.partial || arrived > 0 && x.misses > 0) && p.budget.has(firstUse) {
			p.doubt(now, i) // large messages may be lost
			p.doubtTrains()
		}
		x.partial = partial
		if i > 0 {
			before := x.blocked
			x.evaluate(arrived, late, missing, strict, p.all)
			changed = changed || x.blocked != before
			anyArrived, anyMissing = anyArrived || arrived > 0, anyMissing || missing > 0 && !before
		}
	}
	all := p.all
	switch {
	case anyArrived || gap:
		p.silent, p.all = 0, p.all && !anyArrived
	case anyMissing && !p.all:
		if p.silent++; changed && p.silent >= mostMisses-1 {
			p.blockAll()
		}
	}
	if changed = changed || p.all != all; changed {
		p.retryAt, p.pause = now+minRetry, minRetry
	}
	return changed
}

// evaluate blocks a port without arrivals, unless all are blocked, and opens one with arrivals. strict says that each message that is missing
// counts. A port that was blocked too early gets more time.
func (x *port) evaluate(arrived, late, missing int32, strict, all bool) {
	switch {
	case arrived > 0:
		if late > 0 && (x.blocked || all) {
			x.patience = min(x.patience+mostMisses, mostPatience)
		}
		x.misses, x.blocked = 0, false
		if strict && missing > 0 || missing > 2 && missingShare*missing > arrived {
			x.misses = 1
		}
	case missing > 0 && !x.blocked && !all:
		x.misses++
		x.blocked = x.misses >= mostMisses+x.patience
	}
}

// Next returns when to call Fire, 0 for never: not before more messages are sent.
func (p *Prober) Next(now int64, tx *Sent) int64 {
	if p.state == Off {
		return 0
	}
	at := never
	if due := p.dueAt(p.active(tx.Data - p.sized)); due != 0 {
		if at = due; !p.waiting || p.tries < Tries {
			at = max(due, p.budget.ready(max(now, due), 0))
		}
	}
	if p.asking {
		at = min(at, p.askedAt+Timeout)
	} else if due, keep, _ := p.nextRequest(now, tx); due != 0 {
		at = min(at, max(due, p.budget.ready(now, keep)))
	}
	if due := p.nextRetry(now, tx); due != 0 {
		at = min(at, due)
	}
	if due := p.nextTrain(now, tx); due != 0 {
		at = min(at, due)
	}
	if at == never {
		return 0
	}
	return at
}

// Wake returns the number of messages from one source after which Fire must be called, whatever Next says; 0 for never.
func (p *Prober) Wake(now int64, tx *Sent) uint32 {
	if p.state == Off || p.asking {
		return 0
	}
	at, keep, waiting := p.nextRequest(now, tx)
	switch {
	case at == 0:
		return 1
	case !p.budget.has(keep):
		return p.budget.messages(keep)/max(waiting, 1) + 1
	}
	return 0
}

// Limits of the probes to one peer. A probe costs a token. A minute brings one, and 50 messages
// sent to the peer bring another: 2 %.
const (
	token      = int64(time.Minute)
	perMessage = token / 50
	// burst is the largest number of tokens, and the number at the start and after a change of the
	// endpoint. It is enough to leave a black hole, or to find that the path admits no source
	// port.
	burst = 16
	// reserve is the number of tokens that are kept for doubts. firstUse is kept while a port is
	// used for the first time, and forSizes for the path MTU alone. Time brings no more than the
	// reserve. So a flow of few messages costs 2 % of them while nothing is lost.
	reserve  = 12
	firstUse = 8
	forSizes = 4
	// never is later than all times.
	never = int64(math.MaxInt64)
)

// budget bounds the probes to one peer. The zero budget has all tokens.
type budget struct {
	used int64 // in ns of waiting
	at   int64 // of the last refill, 0 for never
	sent uint32
}

// refill adds what time and messages have brought. sent is the number of all messages.
func (b *budget) refill(now int64, sent uint32) {
	if b.at != 0 {
		b.used = max(min(b.used, max(b.used-(now-b.at), (burst-reserve)*token))-int64(sent-b.sent)*perMessage, 0)
	}
	b.at, b.sent = now, sent
}

// lacking returns how many ns of waiting are missing for a token beyond those to keep.
func (b *budget) lacking(keep int64) int64 { return max(b.used-(burst-keep-1)*token, 0) }

func (b *budget) has(keep int64) bool { return b.lacking(keep) == 0 }

// take takes a token if more than keep are left.
func (b *budget) take(keep int64) bool {
	if !b.has(keep) {
		return false
	}
	b.used += token
	return true
}

// ready returns when take may succeed, never if only more messages can bring that about.
func (b *budget) ready(now, keep int64) int64 {
	if !b.has(keep) && keep >= reserve {
		return never
	}
	return now + b.lacking(keep)
}

// messages returns the number of messages that let take succeed.
func (b *budget) messages(keep int64) uint32 {
	return uint32((b.lacking(keep) + perMessage - 1) / perMessage)
}
