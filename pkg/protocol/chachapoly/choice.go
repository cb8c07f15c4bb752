// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// operation is sealing or opening.
type operation uint8

const (
	sealing operation = iota
	opening
	operations
)

func (o operation) String() string { return [...]string{"seal", "open"}[o] }

// A set of messages belongs to a class by its number and their mean length. A choice of its own for each class has no
// crossovers that were measured on another processor.
var (
	// classCounts is the least number of messages of each class, which is the number that is timed.
	classCounts = [...]int{1, 2, 3, 4, 8, 16}
	// classSizes are the lengths in bytes that are timed, with the tag.
	classSizes = [...]int{64 + TagLen, 256 + TagLen, 512 + TagLen, 1440 + TagLen}
	// sizeLimits is the mean length with which the next class of lengths begins.
	sizeLimits = [len(classSizes) - 1]int{160, 384, 960}
)

// classOf returns the class of a set, which has a message.
func classOf(msgs []Message) (count, size int) {
	for count+1 < len(classCounts) && len(msgs) >= classCounts[count+1] {
		count++
	}
	bytes := 0
	for i := range msgs {
		bytes += len(msgs[i].Text)
	}
	for size < len(sizeLimits) && bytes >= len(msgs)*sizeLimits[size] {
		size++
	}
	return count, size
}

// choice has the implementation for each class.
type choice [operations][len(classCounts)][len(classSizes)]chosen

// chosen is an implementation, and the times that it and Generic take for the timed set; 0: not timed.
type chosen struct {
	*implementation
	took, generic time.Duration
}

// only is the choice of one implementation for all classes.
func only(i *implementation) *choice {
	c := new(choice)
	for op := range c {
		for count := range c[op] {
			for size := range c[op][count] {
				c[op][count][size].implementation = i
			}
		}
	}
	return c
}

func (c *choice) of(op operation, msgs []Message) *implementation {
	count, size := classOf(msgs)
	return c[op][count][size].implementation
}

// preferred is the choice of new keys.
var preferred = sync.OnceValue(func() *choice { return fastest(implementations(), time.Now) })

// timingRounds is how often each set is timed. The best of them counts, so that an interruption of one does not.
const timingRounds = 3

// fastest times each implementation with each class, in turn, and returns the fastest ones. Generic is the last of list. It takes about
// half a millisecond for each, and nothing if there is no choice.
func fastest(list []*implementation, now func() time.Time) *choice {
	c := only(list[len(list)-1])
	k, err := newKey(c, new([KeyLen]byte), 0)
	if err != nil || len(list) < 2 {
		return c // no key will be made, or none to choose
	}
	t := timer{now: now, secret: k.secret, scratch: new(Scratch)}
	for size, length := range classSizes {
		msgs := make([]Message, classCounts[len(classCounts)-1])
		for i := range msgs {
			msgs[i] = Message{Counter: uint64(i), Text: make([]byte, length)}
		}
		for count, n := range classCounts {
			best := t.time(list, msgs[:n])
			for op := range operations {
				c[op][count][size] = pick(list, best, op)
			}
		}
	}
	return c
}

// pick returns the fastest of list in one operation. Of two that are equally fast it is the later one.
func pick(list []*implementation, best [][operations]time.Duration, op operation) chosen {
	last := len(list) - 1
	p := chosen{list[last], best[last][op], best[last][op]}
	for i := last - 1; i >= 0; i-- {
		if best[i][op] < p.took {
			p.implementation, p.took = list[i], best[i][op]
		}
	}
	return p
}

type timer struct {
	now     func() time.Time
	secret  *secret
	scratch *Scratch
}

// time returns the least times that each of list took for the messages.
func (t *timer) time(list []*implementation, msgs []Message) [][operations]time.Duration {
	best := make([][operations]time.Duration, len(list))
	for round := range timingRounds {
		for i, impl := range list {
			began := t.now()
			impl.seal(t.secret, t.scratch, msgs)
			sealed := t.now()
			impl.open(t.secret, t.scratch, msgs)
			for op, took := range [operations]time.Duration{sealing: sealed.Sub(began), opening: t.now().Sub(sealed)} {
				if round == 0 || took < best[i][op] {
					best[i][op] = took
				}
			}
		}
	}
	return best
}

// Choice is the implementation that was the fastest for a number of messages of one length, when this process first made a key.
type Choice struct {
	Operation      string // "seal" or "open"
	Messages       int    // this number, and more up to the next Choice's
	Bytes          int    // of plaintext in each message
	Implementation string
	// Took is the time for all messages, and Generic the time of x/crypto. 0 means that there is
	// no choice.
	Took, Generic time.Duration
}

// Choices returns one Choice for each class of sets. It is for doctor.
func Choices() (all []Choice) {
	c := preferred()
	for op := range operations {
		for count, n := range classCounts {
			for size, length := range classSizes {
				p := &c[op][count][size]
				all = append(all, Choice{op.String(), n, length - TagLen, p.name, p.took, p.generic})
			}
		}
	}
	return all
}

// Implementation names the instruction sets that seal and open trains, for doctor and metrics. The
// sets for the longest packets come first.
func Implementation() string {
	c, names := preferred(), []string(nil)
	for size := len(classSizes) - 1; size >= 0; size-- {
		for op := range operations {
			set, _, _ := strings.Cut(c[op][len(classCounts)-1][size].name, "-")
			if !slices.Contains(names, set) {
				names = append(names, set)
			}
		}
	}
	return strings.Join(names, "+")
}
