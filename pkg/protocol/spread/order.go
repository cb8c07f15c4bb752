// SPDX-License-Identifier: Apache-2.0

package spread

import "time"

const (
	// MaxOrderWait bounds the time for which messages of a sprayed flow wait for missing ones.
	MaxOrderWait = 50 * time.Millisecond
	// minOrderWait is the least wait: a receiver that shares its cores handles two ports as far apart as this.
	minOrderWait = time.Millisecond
	// orderPeriod is the time after which a measured difference of the paths is replaced by a newer one.
	orderPeriod = int64(time.Second)
	// firstOrderPeriod is the length of the first one, in which messages wait for MaxOrderWait.
	firstOrderPeriod = int64(200 * time.Millisecond)
	// orderSlots is the largest distance in messages between the first missing message and the last that waits.
	orderSlots = 8192
)

// Place is the position of a message relative to the message that an Order delivers next.
type Place uint8

// Places.
const (
	InOrder Place = iota // deliver it now
	Late                 // deliver it now: the Order has given it up
	Early                // it has to wait for others: Keep it
	Beyond               // there is no room for it: make some with MakeRoom, and try again
)

// Order puts the messages of one sprayed flow back into the order of their numbers. A message that
// arrives too early waits for the messages before it, no longer than the paths differ. The limit
// is the longest time for which a message that did arrive was missed in the last seconds, and half
// of that again. It begins with MaxOrderWait, which is also the upper bound. One goroutine uses
// it.
type Order[T any] struct {
	slots   []orderSlot[T] // a ring by number; nil until a message waits
	next    uint32         // the number of the next message to deliver
	waiting int
	first   uint32 // the number of the first message that waits, valid if there is one
	// The longest time for which a message was missed, in this period and in the one before. Late messages count as well.
	missed, missedBefore int64
	period               int64
	skippedAt            int64 // arrival of the message that waited longest when Order last gave one up
	skipped              uint64
}

type orderSlot[T any] struct {
	item    T
	at      int64
	present bool
}

// NewOrder returns an Order whose first message has the given number.
func NewOrder[T any](first uint32, now int64) *Order[T] {
	return &Order[T]{next: first, missedBefore: int64(MaxOrderWait), period: now - orderPeriod + firstOrderPeriod}
}

// Arrive decides about the message with a number that has not arrived before.
func (o *Order[T]) Arrive(number uint32, now int64) Place {
	switch ahead := int32(number - o.next); {
	case ahead < 0:
		if o.skippedAt != 0 {
			o.note(now - o.skippedAt)
		}
		return Late
	case ahead > 0 && ahead < orderSlots:
		return Early
	case ahead > 0:
		return Beyond
	}
	if o.waiting > 0 {
		o.note(now - o.slots[o.first%orderSlots].at)
	}
	o.next++
	return InOrder
}

// Keep takes a message that is Early.
func (o *Order[T]) Keep(number uint32, now int64, item T) {
	if o.slots == nil {
		o.slots = make([]orderSlot[T], orderSlots)
	}
	if o.waiting == 0 || int32(number-o.first) < 0 {
		o.first = number
	}
	if after := &o.slots[(number+1)%orderSlots]; after.present { // number is the end of a gap that is not the first
		o.note(now - after.at)
	}
	o.slots[number%orderSlots] = orderSlot[T]{item, now, true}
	o.waiting++
}

// Ready reports whether the first message that waits is the next one.
func (o *Order[T]) Ready() bool { return o.waiting > 0 && o.first == o.next }

// Next removes the next message if it is no longer to wait: all before it were delivered, or are overdue.
func (o *Order[T]) Next(now int64) (item T, ok bool) {
	if o.waiting == 0 || o.first != o.next && now < o.Deadline() {
		return item, false
	}
	return o.Skip()
}

// Skip removes the first message that waits, and gives up those before it.
func (o *Order[T]) Skip() (item T, ok bool) {
	if o.waiting == 0 {
		return item, false
	}
	s := &o.slots[o.first%orderSlots]
	if o.first != o.next {
		o.skippedAt = s.at
		o.skipped += uint64(o.first - o.next)
	}
	item, *s = s.item, orderSlot[T]{}
	o.waiting--
	o.next = o.first + 1
	for o.first = o.next; o.waiting > 0 && !o.slots[o.first%orderSlots].present; {
		o.first++
	}
	return item, true
}

// MakeRoom removes the first message that waits, as Skip does, for a message that is Beyond. If
// none waits, there is room then.
func (o *Order[T]) MakeRoom(number uint32) (item T, ok bool) {
	if o.waiting == 0 {
		next := number - orderSlots + 1
		o.skipped += uint64(next - o.next)
		o.next = next
	}
	return o.Skip()
}

// Begun reports whether a message was delivered or given up.
func (o *Order[T]) Begun() bool { return o.next != 0 }

// Waiting returns the number of messages that wait.
func (o *Order[T]) Waiting() int { return o.waiting }

// TakeSkipped returns the number of messages that were given up since the last call.
func (o *Order[T]) TakeSkipped() uint64 {
	n := o.skipped
	o.skipped = 0
	return n
}

// Deadline returns when Next gives up the messages that are missing. A message must wait.
func (o *Order[T]) Deadline() int64 { return o.slots[o.first%orderSlots].at + o.Wait() }

// Wait returns the longest time for which a message waits now, in ns.
func (o *Order[T]) Wait() int64 {
	longest := max(o.missed, o.missedBefore)
	return min(max(longest+longest/2, int64(minOrderWait)), int64(MaxOrderWait))
}

// note records how long a message that has arrived was missed.
func (o *Order[T]) note(missed int64) { o.missed = max(o.missed, missed) }

// Tick begins a new period of measurement if one is over. The caller calls it now and then.
func (o *Order[T]) Tick(now int64) {
	if now-o.period >= orderPeriod {
		o.missedBefore, o.missed, o.period = o.missed, 0, now
	}
}
