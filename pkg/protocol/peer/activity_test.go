// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	sec = int64(time.Second)
	ms  = int64(time.Millisecond)
	t0  = 1000 * sec // an arbitrary beginning
)

func TestActivityTracksBothWaits(t *testing.T) {
	type event struct {
		at         int64
		sent, data bool
	}
	tests := []struct {
		name             string
		events           []event
		unanswered, owed int64
	}{
		{"nothing", nil, 0, 0},
		{"data sent", []event{{t0, true, true}}, t0, 0},
		{"data sent twice counts from the first", []event{{t0, true, true}, {t0 + sec, true, true}}, t0, 0},
		{"a keepalive sent awaits no answer", []event{{t0, true, false}}, 0, 0},
		{"an answer ends the wait", []event{{t0, true, true}, {t0 + ms, false, false}}, 0, 0},
		{"data received is owed an answer", []event{{t0, false, true}}, 0, t0},
		{"counted from the first received", []event{{t0, false, true}, {t0 + sec, false, true}}, 0, t0},
		{"a keepalive received is owed nothing", []event{{t0, false, false}}, 0, 0},
		{"a keepalive sent is an answer", []event{{t0, false, true}, {t0 + ms, true, false}}, 0, 0},
		{"data sent is an answer that awaits one", []event{{t0, false, true}, {t0 + ms, true, true}}, t0 + ms, 0},
		{"a question answered at once", []event{{t0, true, true}, {t0 + ms, false, true}}, 0, t0 + ms},
	}
	for _, tt := range tests {
		var a Activity
		for _, e := range tt.events {
			if e.sent {
				a.Sent(e.at, e.data)
			} else {
				a.Received(e.at, e.data)
			}
		}
		if u, o := a.unanswered.Load(), a.owed.Load(); u != tt.unanswered || o != tt.owed {
			t.Errorf("%s: got unanswered %d, owed %d, want %d, %d", tt.name, u, o, tt.unanswered, tt.owed)
		}
	}
}

func TestControlMessageStandsInForNoKeepalive(t *testing.T) {
	var a Activity
	a.Received(t0, true)
	a.SentControl(t0 + sec)
	if u, o := a.unanswered.Load(), a.owed.Load(); u != 0 || o != t0 || a.LastSent() != t0+sec {
		t.Errorf("got unanswered %d, owed %d, last sent %d, want 0, %d, %d", u, o, a.LastSent(), t0, t0+sec)
	}
}

func TestActivityRecordsInstantsWithin100ms(t *testing.T) {
	var a Activity
	for at := t0; at < t0+sec; at += ms {
		a.Sent(at, true)
		a.Received(at, true)
		if at-a.LastSent() >= activityStep || at-a.LastReceived() >= activityStep {
			t.Fatalf("after %d ms: got last sent %d ms ago, last received %d ms ago, want less than %d ms", (at-t0)/ms, (at-a.LastSent())/ms, (at-a.LastReceived())/ms, activityStep/ms)
		}
	}
}

func TestBusyExchangeStopsActivityChanges(t *testing.T) {
	var a Activity
	changes := 0
	for at := t0; at < t0+sec; at += ms / 100 {
		u, o := a.unanswered.Load(), a.owed.Load()
		a.Sent(at, true)
		a.Received(at, true)
		if a.unanswered.Load() != u || a.owed.Load() != o {
			changes++
		}
	}
	if limit := 11 * changeLimit; changes > limit {
		t.Errorf("got %d changes in a second of 100,000 trains each way, want at most %d", changes, limit)
	}
}

func TestActivityErrorAfterBurstIsHarmless(t *testing.T) {
	burst := func() (*Activity, int64) {
		a, at := new(Activity), t0
		for ; at < t0+990*ms; at += ms / 10 {
			a.Sent(at, true)
			a.Received(at, true)
		}
		return a, at
	}
	a, at := burst()
	a.Received(at, true)
	if a.owed.Load() == 0 {
		t.Error("after data was received last: got owed 0, want a keepalive owed")
	}
	if a.unanswered.Load() != 0 {
		t.Error("after data was received last: got a reply outstanding, want none")
	}
	a, at = burst()
	a.Sent(at, true)
	a.Sent(at+activityStep, true)
	if a.unanswered.Load() == 0 {
		t.Error("after data was sent: got unanswered 0, want a reply outstanding")
	}
}

func TestActivityIsSafeForAllLanes(t *testing.T) {
	var a Activity
	var wg sync.WaitGroup
	for lane := range int64(4) {
		wg.Go(func() {
			for i := range int64(5000) {
				a.Sent(t0+i*ms+lane, i%2 == 0)
				a.Received(t0+i*ms+lane, i%3 == 0)
			}
		})
	}
	wg.Wait()
	a.Sent(t0+10*sec, false)
	a.Received(t0+10*sec, false)
	if a.owed.Load() != 0 || a.unanswered.Load() != 0 {
		t.Error("after a keepalive each way: got owed or unanswered set, want both 0")
	}
}

func TestActivityAllocatesNothing(t *testing.T) {
	var a Activity
	at := t0
	if n := testing.AllocsPerRun(100, func() {
		at += ms
		a.Sent(at, true)
		a.Received(at, true)
	}); n != 0 {
		t.Errorf("got %v allocations per train, want 0", n)
	}
}

// flag is a Waker that remembers.
type flag struct{ atomic.Bool }

func (f *flag) Wake() { f.Store(true) }

// TestEveryWaitWakesOrIsSeen: a lane begins a wait while the timers check. Either the check sees it or Wake is called.
func TestEveryWaitWakesOrIsSeen(t *testing.T) {
	const rounds = 50_000
	var woke flag
	a := Activity{Waker: &woke}
	var began, done atomic.Int64
	go func() {
		for i := int64(1); i <= rounds; i++ {
			for began.Load() < i {
				runtime.Gosched()
			}
			a.Received(t0, true)
			done.Store(i)
		}
	}()
	defer began.Store(rounds) // lets the lane go
	for i := int64(1); i <= rounds; i++ {
		var timers Timers
		timers.Stop(&a)
		timers.Start()
		woke.Store(false)
		began.Store(i)
		for range i % 64 { // so that the two meet at different points
			began.Load()
		}
		next := timers.Next(t0, &a)
		for done.Load() < i {
			runtime.Gosched()
		}
		if next != t0+KeepaliveTimeout && !woke.Load() {
			t.Fatalf("round %d: data was received, but Wake was not called and the next check is at %d, want %d", i, next, t0+KeepaliveTimeout)
		}
	}
}

// TestWakingAllocatesNothing: it happens on the fast path.
func TestWakingAllocatesNothing(t *testing.T) {
	var timers Timers
	a := Activity{Waker: &flag{}}
	now := t0
	if n := testing.AllocsPerRun(100, func() {
		now += 20 * sec
		timers.Fire(now, &a)
		timers.Next(now, &a)
		a.Received(now, true)
		a.Sent(now, true)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
