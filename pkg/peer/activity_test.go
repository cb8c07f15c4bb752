// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"sync"
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
			t.Errorf("%s: unanswered %d, owed %d, want %d, %d", tt.name, u, o, tt.unanswered, tt.owed)
		}
	}
}

func TestActivityKeepsLastInstantsToATenthOfASecond(t *testing.T) {
	var a Activity
	for at := t0; at < t0+sec; at += ms {
		a.Sent(at, true)
		a.Received(at, true)
		if at-a.LastSent() >= coarseStep || at-a.LastReceived() >= coarseStep {
			t.Fatalf("%d ms in: last sent %d ms ago, received %d ms ago", (at-t0)/ms, (at-a.LastSent())/ms, (at-a.LastReceived())/ms)
		}
	}
}

func TestActivityRestsUnderABusyExchange(t *testing.T) {
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
	if limit := 11 * flipLimit; changes > limit {
		t.Errorf("%d changes in a second of 100,000 trains each way, want at most %d", changes, limit)
	}
}

func TestActivityErrsOnTheHarmlessSideAfterABurst(t *testing.T) {
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
		t.Error("data came last, and no answer is owed")
	}
	if a.unanswered.Load() != 0 {
		t.Error("data came last, and an answer is awaited")
	}
	a, at = burst()
	a.Sent(at, true)
	a.Sent(at+coarseStep, true)
	if a.unanswered.Load() == 0 {
		t.Error("what is sent into silence after the burst awaits no answer")
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
		t.Error("a keepalive each way leaves a wait open")
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
		t.Errorf("%v allocations per train", n)
	}
}

func BenchmarkActivity(b *testing.B) {
	var a Activity
	for b.Loop() {
		a.Sent(t0, true)
		a.Received(t0, true)
	}
}
