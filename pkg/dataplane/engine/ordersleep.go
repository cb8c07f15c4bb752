// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"time"
)

// orderSleep forgets the orders of a lane that sleeps in the kernel. While messages arrive, tendOrders does so. The lane's goroutine has the orders
// while it is awake, and the timer may have them while it sleeps. No message waits then.
type orderSleep struct {
	mu     sync.Mutex
	asleep bool   // only the lane's goroutine sets it
	sleeps uint64 // how often the lane has begun to sleep
	seen   uint64 // sleeps when the timer was set
	timer  *time.Timer
	set    bool // the timer
}

// sleep begins a sleep of the lane. The timer is set once per orderIdle at most, not for each sleep.
func (o *orders) sleep() {
	if len(o.list) == 0 {
		return
	}
	s := &o.sleeping
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asleep = true
	if s.sleeps++; !s.set {
		o.setTimer()
	}
}

// wake ends a sleep.
func (o *orders) wake() {
	s := &o.sleeping
	if !s.asleep {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asleep = false
}

// setTimer sets the timer. The caller holds mu.
func (o *orders) setTimer() {
	s := &o.sleeping
	s.set, s.seen = true, s.sleeps
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Duration(orderIdle), o.expire)
	} else {
		s.timer.Reset(time.Duration(orderIdle))
	}
}

// expire forgets the orders if the lane has slept since the timer was set.
func (o *orders) expire() {
	s := &o.sleeping
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.set = false; {
	case s.sleeps != s.seen:
		o.setTimer()
	case s.asleep:
		o.forget()
	}
}

// close forgets the orders, and ends the timer, when the lane stops to receive.
func (o *orders) close() {
	s := &o.sleeping
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.set = false
	}
	o.forget()
}
