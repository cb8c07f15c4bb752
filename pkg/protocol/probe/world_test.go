// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const tick = int64(time.Millisecond)

// world is a host, its Prober, the paths to a peer and the peer, in virtual time.
type world struct {
	Prober
	t       *testing.T
	r       *rand.Rand
	now     int64
	paths   []pathway
	flows   []*stream
	sent    Sent
	wake    []uint32 // of each path: the count that calls Fire, 0 for none
	next    int64    // when to call Fire, 0 for never
	timer   int64    // when the owner's own timers expire, 0 for never: 10 s after data
	arrive  []event  // by time
	peer    []uint32 // messages received on each path
	counts  bool     // the peer counts messages of source ports
	silent  bool     // the peer answers nothing
	outage  bool     // nothing arrives in either direction
	trains  bool     // trains arrive
	ended   int      // tests of trains that ended
	back    int64    // delay of answers
	probes  int      // sent
	reports int
	fires   int
	began   int64
	refills int
}

// pathway is what a path does.
type pathway struct {
	blocked bool
	loss    float64
	delay   int64
	jitter  int64
	mtu     int
}

// event is something that will happen.
type event struct {
	at   int64
	then func()
}

// stream is a flow of packets of one size.
type stream struct {
	path   int
	every  int64
	size   int
	next   int64
	until  int64
	lost   int
	copies int // packets sent at once, in a train if there are several
}

func newWorld(t *testing.T, sources int, seed uint64) *world {
	t.Helper()
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 5)), now: second, began: second, counts: true, trains: true, back: 10 * tick}
	w.paths = slices.Repeat([]pathway{{delay: 10 * tick, mtu: 1500}}, 1+sources)
	w.sent.On, w.wake, w.peer = make([]uint32, 1+sources), make([]uint32, 1+sources), make([]uint32, 1+sources)
	if sources > 0 {
		w.SetSources(sources)
	}
	w.Start(w.now, sizes4(1420))
	w.arm()
	return w
}

// seeds returns how many of n seeds to simulate.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return 1
	}
	return n
}

// flow adds a flow of so many packets per second.
func (w *world) flow(path, perSecond, size int) *stream {
	f := &stream{path: path, every: second / int64(perSecond), size: size, until: 1 << 62, copies: 1}
	f.next = w.now + w.r.Int64N(f.every)
	w.flows = append(w.flows, f)
	return f
}

// run passes time.
func (w *world) run(d time.Duration) {
	for end := w.now + int64(d); ; {
		at := w.nextEvent(end)
		if at >= end {
			w.now = end
			break
		}
		w.now = at
		for len(w.arrive) > 0 && w.arrive[0].at <= at {
			f := w.arrive[0].then
			w.arrive = w.arrive[1:]
			f()
		}
		for _, f := range w.flows {
			if f.next <= at && at < f.until {
				for range f.copies {
					w.data(f)
				}
				f.next = max(f.next, at) + f.every
			}
		}
		if w.next != 0 && at >= w.next || w.timer != 0 && at >= w.timer {
			w.timer = 0
			w.fire()
		}
	}
	w.wantBudget()
}

// nextEvent returns when something happens, end if nothing does before.
func (w *world) nextEvent(end int64) int64 {
	at := end
	if len(w.arrive) > 0 {
		at = min(at, w.arrive[0].at)
	}
	for _, f := range w.flows {
		if f.next < f.until {
			at = min(at, f.next)
		}
	}
	for _, timer := range []int64{w.next, w.timer} {
		if timer != 0 {
			at = min(at, max(timer, w.now+tick))
		}
	}
	return max(at, w.now)
}

// data sends a packet of a flow, which leaves from the listen port if its own is blocked.
func (w *world) data(f *stream) {
	path := f.path
	if path > 0 && w.Blocked(path-1) {
		path = 0
	}
	size := f.size
	if limit, _ := w.Limit(); limit > 0 {
		size = min(size, limit)
	}
	w.sent.Data += uint64(size)
	if w.timer == 0 {
		w.timer = w.now + 10*second
	}
	if !w.carried(path, size, w.trains || f.copies == 1, nil) {
		f.lost++
	}
	if at := w.wake[path]; path > 0 && at != 0 && int32(w.sent.On[path]-at) >= 0 {
		w.wake[path] = 0
		w.fire()
	}
}

// carried is send of a message that is lost in any case unless ok.
func (w *world) carried(path, size int, ok bool, then func()) bool {
	if ok {
		return w.send(path, size, then)
	}
	w.sent.All++
	w.sent.On[path]++
	return false
}

// send sends a message, and reports whether it will arrive.
func (w *world) send(path, size int, then func()) bool {
	w.sent.All++
	w.sent.On[path]++
	p := &w.paths[path]
	if p.blocked || w.outage || size > p.mtu || w.r.Float64() < p.loss {
		return false
	}
	delay := p.delay
	if p.jitter > 0 {
		delay += w.r.Int64N(p.jitter)
	}
	w.at(delay, func() {
		w.peer[path]++
		if then != nil {
			then()
		}
	})
	return true
}

func (w *world) at(delay int64, f func()) {
	e := event{w.now + max(delay, tick), f}
	i, _ := slices.BinarySearchFunc(w.arrive, e, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), -1) })
	w.arrive = slices.Insert(w.arrive, i, e)
}

// fire does what the owner of a Prober does.
func (w *world) fire() {
	w.fires++
	for _, p := range slices.Clone(w.Fire(w.now, &w.sent)) {
		w.probes++
		size := p.Size
		if p.Kind != wire.ProbeSize {
			size = 76
		}
		if p.Train {
			w.probes++
			w.carried(p.Path, size, w.trains, nil)
		}
		w.carried(p.Path, size, w.trains || !p.Train, func() { w.answer(p) })
	}
	w.arm()
}

// answer has the peer answer a probe that has arrived.
func (w *world) answer(p Probe) {
	if w.silent || w.outage || p.Kind == wire.ProbePort || w.r.Float64() < w.paths[0].loss {
		return
	}
	if p.Kind == wire.ProbeSize {
		w.at(w.back, func() {
			concluded, ok := w.TrainsAnswered(w.now, p.ID)
			if concluded {
				w.ended++
			}
			if !ok {
				w.Answered(w.now, p.ID, p.Size)
			}
			w.arm()
		})
		return
	}
	w.reports++
	r := Report{ID: p.ID, On: slices.Clone(w.peer), Counted: w.counts}
	w.at(w.back, func() { w.Reported(w.now, &r, &w.sent); w.fire() })
}

func (w *world) arm() {
	w.next = w.Next(w.now, &w.sent)
	n := w.Wake(w.now, &w.sent)
	for i := range w.wake {
		if w.wake[i] = 0; n > 0 {
			w.wake[i] = max(w.sent.On[i]+n, 1)
		}
	}
}

// wantBudget fails if there were more probes than 2 % of all messages, one per minute, and the bursts.
func (w *world) wantBudget() {
	w.t.Helper()
	most := int64(w.sent.All)/50 + (w.now-w.began)/int64(time.Minute) + int64(burst*(1+w.refills)) + 1
	if int64(w.probes) > most {
		w.t.Errorf("got %d probes for %d messages in %v, want at most %d", w.probes, w.sent.All, time.Duration(w.now-w.began), most)
	}
}

// blockedPaths returns the paths whose ports are blocked.
func (w *world) blockedPaths() (list []int) {
	for i := range len(w.paths) - 1 {
		if w.Blocked(i) {
			list = append(list, i+1)
		}
	}
	return list
}

func (w *world) wantBlocked(why string, want ...int) {
	w.t.Helper()
	if got := w.blockedPaths(); !slices.Equal(got, want) {
		w.t.Errorf("%s, after %v: got paths %v blocked, want %v", why, time.Duration(w.now-w.began), got, want)
	}
}

// until passes time until done, and returns how much.
func (w *world) until(most time.Duration, done func() bool) time.Duration {
	w.t.Helper()
	for begin := w.now; ; w.run(2 * time.Millisecond) { // timers fire within
		if done() {
			return time.Duration(w.now - begin)
		}
		if time.Duration(w.now-begin) > most {
			w.t.Fatalf("not within %v", most)
		}
	}
}
