// SPDX-License-Identifier: Apache-2.0

package crew

import "time"

const (
	// pressing is how much must have waited behind the lane of late, and mostWaited what is remembered of it: a burst of a few
	// trains is over before a worker is awake.
	pressing   = 8
	mostWaited = 4 * pressing

	// judged is after how many pieces of work a desk decides whether to stay open.
	judged = 64
	// few is how many of them workers must have done, lest it close.
	few = judged / 8
	// tolerance is how many long waits close it.
	tolerance = 2
	// tooLong is a wait for a worker, in offers of the lane's core to others: some 60 µs, twice what a train takes on another
	// core.
	tooLong = 128
	// proven is how many good judgements in a row make a desk forget its past, and then forgive a bad one: something else may
	// run on an idle machine too.
	proven = 8

	firstRest = int64(10 * time.Millisecond)
	lastRest  = int64(time.Second)
)

// habit is what a desk has learnt about offering.
type habit struct {
	waited int // see pressing
	now    int64
	closed int64 // until when
	rest   int64 // how long that was
	good   int   // judgements in a row

	// Since the last judgement: work that was done by workers and by the lane, and long waits.
	done, back, waits int
}

// Press tells the desk that so much work was waiting behind what the lane had at hand; 0 or less says that it had caught up.
func (d *Desk) Press(waiting int) {
	if waiting <= 0 {
		d.habit.waited /= 2
		return
	}
	d.habit.waited = min(d.habit.waited+waiting, mostWaited)
}

// Pressed tells whether the lane has been behind for a while, so that a worker is worth being woken.
func (d *Desk) Pressed() bool { return d.habit.waited >= pressing }

// Open tells whether work may be offered. now is the present instant, in nanoseconds of any monotonic clock.
func (d *Desk) Open(now int64) bool {
	if d.crew == nil {
		return false
	}
	d.habit.now = now
	return now >= d.habit.closed
}

// note counts a piece of work that was collected.
func (d *Desk) note(back bool) {
	h := &d.habit
	if back {
		h.back++
		d.stats.back.Add(1)
	} else {
		h.done++
		d.stats.done.Add(1)
	}
	if h.done+h.back >= judged {
		d.judge()
	}
}

// judge closes the desk if offering has not paid: workers did not begin in time, kept the lane waiting, or were on cores that
// others wanted for a third of the time.
func (d *Desk) judge() {
	h := &d.habit
	ran, lost := d.ran.Swap(0), d.lost.Swap(0)
	switch paid := h.done >= few && h.waits < tolerance && lost <= ran/2; {
	case paid:
		if h.good++; h.good >= proven {
			h.rest = 0
		}
	case h.good >= proven:
		h.good = 0
	default:
		h.good = 0
		h.rest = min(max(2*h.rest, firstRest), lastRest)
		h.closed = h.now + h.rest
		d.stats.backOffs.Add(1)
	}
	h.done, h.back, h.waits = 0, 0, 0
}
