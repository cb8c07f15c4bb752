// SPDX-License-Identifier: Apache-2.0

package order

import (
	"sync"
	"time"
)

// orderSleep forgets the orders of a lane that sleeps in the kernel. While messages arrive, tend does so. The lane's goroutine has the orders
// while it is awake, and the timer may have them while it sleeps. No message waits then.
type orderSleep struct {
	mu     sync.Mutex
	asleep bool   // only the lane's goroutine sets it
	sleeps uint64 // how often the lane has begun to sleep
	seen   uint64 // sleeps when the timer was set
	timer  *time.Timer
	set    bool // the timer
}

// Sleep begins a sleep of the lane. The timer is set once per orderIdle at most, not for each sleep.
func (q *Orders) Sleep() {
	if len(q.list) == 0 {
		return
	}
	s := &q.sleeping
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asleep = true
	if s.sleeps++; !s.set {
		q.setTimer()
	}
}

// Wake ends a sleep.
func (q *Orders) Wake() {
	s := &q.sleeping
	if !s.asleep {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asleep = false
}

// setTimer sets the timer. The caller holds mu.
func (q *Orders) setTimer() {
	s := &q.sleeping
	s.set, s.seen = true, s.sleeps
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Duration(orderIdle), q.expire)
	} else {
		s.timer.Reset(time.Duration(orderIdle))
	}
}

// expire forgets the orders if the lane has slept since the timer was set.
func (q *Orders) expire() {
	s := &q.sleeping
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.set = false; {
	case s.sleeps != s.seen:
		q.setTimer()
	case s.asleep:
		q.forget()
	}
}

// Close forgets the orders, and ends the timer, when the lane stops to receive.
func (q *Orders) Close() {
	s := &q.sleeping
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.set = false
	}
	q.forget()
}
