// SPDX-License-Identifier: Apache-2.0

package crew

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/session"
)

// judgement has a desk see so many pieces done by workers, and the rest by the lane.
func judgement(d *Desk, done int) {
	for i := range judged {
		d.note(i >= done)
	}
}

func TestDeskRestsTwiceAsLongEachTimeWorkersDoNotBegin(t *testing.T) {
	d, now := absent(1).NewDesk(8), int64(1e9)
	scratch := new(session.Scratch)
	for i, ms := range []int64{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
		if !d.Open(now) {
			t.Fatalf("closed at rest %d", i)
		}
		for range judged {
			d.Offer(&piece{})
			d.Collect(scratch)
		}
		rest := ms * int64(time.Millisecond)
		if d.Open(now) || d.Open(now+rest-1) || !d.Open(now+rest) {
			t.Errorf("rest %d does not last %d ms", i, ms)
		}
		now += rest
	}
	if n := d.Stats().BackOffs; n != 9 {
		t.Errorf("%d back-offs", n)
	}
}

func TestWhatClosesADesk(t *testing.T) {
	for _, tt := range []struct {
		name      string
		done      int
		ran, lost time.Duration
		waits     int
		closes    bool
	}{
		{"workers do all", judged, time.Millisecond, 0, 0, false},
		{"workers do enough", few, time.Millisecond, 0, 0, false},
		{"workers do too little", few - 1, time.Millisecond, 0, 0, true},
		{"their cores are theirs for two thirds of the time", judged, 2 * time.Millisecond, time.Millisecond, 0, false},
		{"for less", judged, 2 * time.Millisecond, time.Millisecond + 1, 0, true},
		{"one long wait", judged, time.Millisecond, 0, 1, false},
		{"two", judged, time.Millisecond, 0, 2, true},
	} {
		d := absent(1).NewDesk(8)
		d.Open(1)
		d.report(int64(tt.ran), int64(tt.lost))
		d.habit.waits = tt.waits
		judgement(d, tt.done)
		if d.Open(1) == tt.closes {
			t.Errorf("%s: closes: %v", tt.name, !tt.closes)
		}
	}
}

func TestProvenDeskForgivesOnceAndForgets(t *testing.T) {
	d := absent(1).NewDesk(8)
	d.Open(1)
	judgement(d, 0)
	judgement(d, 0)
	if d.habit.rest != 2*firstRest {
		t.Fatal(d.habit.rest)
	}
	now := d.habit.closed
	d.Open(now)
	for range proven {
		judgement(d, judged)
	}
	if judgement(d, 0); !d.Open(now) {
		t.Error("closed for one bad judgement")
	}
	if judgement(d, 0); d.Open(now+firstRest-1) || !d.Open(now+firstRest) {
		t.Error("its past was not forgotten")
	}
}

func TestOnlyALaneThatStaysBehindIsPressed(t *testing.T) {
	d := absent(1).NewDesk(8)
	for range 1000 {
		d.Press(1)
		d.Press(1)
		d.Press(0) // a burst of three
	}
	if d.Pressed() {
		t.Error("by small bursts")
	}
	for range pressing {
		d.Press(1)
	}
	if !d.Pressed() {
		t.Error("not by a long one")
	}
	for range mostWaited {
		d.Press(5)
	}
	for range 3 {
		d.Press(-1)
	}
	if d.Pressed() {
		t.Error("long after it has caught up")
	}
}

func TestLongWaitsAreCounted(t *testing.T) {
	d := absent(1).NewDesk(8)
	for n := 1; n <= 2*tooLong; n++ {
		d.waitABit(n)
	}
	if d.habit.waits != 1 {
		t.Errorf("%d long waits, want 1", d.habit.waits)
	}
}
