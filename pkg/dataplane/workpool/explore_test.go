// SPDX-License-Identifier: Apache-2.0

package workpool

import (
	"slices"
	"strings"
	"testing"
)

// The explorer enumerates all interleavings of a lane, its workers and the network, in a model of this package's protocol whose steps are
// the atomic operations of the code. A fault put back shows that it would be found.

// fault is a fault of the model.
type fault int

const (
	noFault fault = iota
	// blockWhileWorkerReceives lets the lane block for packets while a worker receives. Nobody wakes it when the worker is done: the stall
	// of CVE-2026-52945, whose consumer returned at an undecrypted packet and was not scheduled when that was decrypted.
	blockWhileWorkerReceives
	// sleepUnchecked lets a worker sleep without a look at its ring after it has announced that it sleeps: a lost wakeup.
	sleepUnchecked
	// retractUnlocked ends an offer by a load and a store, not by one compare-and-swap.
	retractUnlocked
)

const (
	maxExplored   = 3 // elements, workers
	exploredLimit = 2 // jobs in the ring
)

// world is a state of the model. Elements are handled in order, so that counters identify them.
type world struct {
	fault                                          fault
	elements                                       int // that arrive
	arrived, taken, admitted, submitted, collected int // elements, each at most the one before
	claimed                                        int
	done                                           [maxExplored]bool
	offer                                          Outcome
	attached                                       int
	reading                                        int // threads in a receive call

	lane    laneState
	count   int // workers
	workers [maxExplored]workerState
}

type laneState struct {
	at      string // the next step
	after   string // the step behind a subroutine
	offered bool
	job     int // that it runs
	worker  int // that it assigns
}

type workerState struct {
	at           string
	ring, asleep bool
	event        bool
	job          int
}

// step is one way on from a state.
type step struct {
	name string
	to   world
}

// explore visits all states. It returns their number, and by broken property the steps to the first state that breaks it.
func explore(f fault, workers, elements int) (states int, traces map[string][]string) {
	w := world{fault: f, count: workers, elements: elements}
	w.lane.at = "next"
	for i := range workers {
		w.workers[i].at = "look"
	}
	type visit struct {
		from world
		name string
	}
	seen := map[world]visit{w: {}}
	traces = map[string][]string{}
	for queue := []world{w}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		next := at.steps()
		if broken := at.verify(len(next) == 0); broken != "" && traces[broken] == nil {
			for v := at; v != w; v = seen[v].from {
				traces[broken] = append(traces[broken], seen[v].name)
			}
			slices.Reverse(traces[broken])
		}
		for _, s := range next {
			if _, ok := seen[s.to]; !ok {
				seen[s.to] = visit{at, s.name}
				queue = append(queue, s.to)
			}
		}
	}
	return len(seen), traces
}

// verify returns the property that does not hold in a state; end means that no step leads on.
func (w *world) verify(end bool) string {
	switch {
	case w.reading > 1:
		return "two threads receive at once"
	case !end:
		return ""
	case w.collected < w.arrived || w.arrived < w.elements:
		return "elements have arrived, and nobody handles them"
	case w.attached != 0:
		return "a worker that sleeps is counted as attached, and never gets a ring again"
	}
	return ""
}

var workerNames = [maxExplored]string{"worker 0: ", "worker 1: ", "worker 2: "}

// steps returns all steps that are possible.
func (w *world) steps() (all []step) {
	add := func(name string, change func(*world)) {
		s := step{name, *w}
		change(&s.to)
		all = append(all, s)
	}
	if w.arrived < w.elements {
		add("network: arrive", func(w *world) { w.arrived++ })
	}
	w.laneSteps(func(name string, change func(*world)) { add("lane: "+w.lane.at+name, change) })
	for i, name := range workerNames[:w.count] {
		w.workerSteps(i, func(how string, change func(*world, *workerState)) {
			add(name+w.workers[i].at+how, func(w *world) { change(w, &w.workers[i]) })
		})
	}
	return all
}

func (w *world) idle() bool      { return w.collected == w.admitted }
func (w *world) unclaimed() bool { return w.claimed < w.submitted }

// laneSteps are receiver.next, receiver.handleReceived, and the methods of JobRing that they call.
func (w *world) laneSteps(add func(name string, change func(*world))) {
	goTo := func(at string) func(*world) { return func(w *world) { w.lane.at = at } }
	switch w.lane.at {
	case "next":
		switch {
		case w.lane.offered:
			add("", goTo("retract"))
		case !w.idle() || w.arrived > w.taken: // else it blocks
			add("", goTo("receive"))
		}
	case "retract", "retract late":
		w.retractSteps(add)
	case "look at outcome":
		w.outcomeSteps(add)
	case "block": // with the fault
		if w.arrived > w.taken {
			add("", goTo("receive"))
		}
	case "receive":
		add("", func(w *world) { w.reading, w.lane.at = w.reading+1, "received" })
	case "received":
		add("", func(w *world) {
			w.reading, w.taken = w.reading-1, w.arrived
			w.admitted, w.lane.at = w.taken, "handle"
		})
	default:
		w.handleSteps(add, goTo)
	}
}

// retractSteps are the first half of JobRing.Retract.
func (w *world) retractSteps(add func(name string, change func(*world))) {
	withdraw := func(w *world) { w.offer, w.lane.offered, w.lane.at = NotOffered, false, "next" }
	switch {
	case w.lane.at == "retract late":
		add("", withdraw)
	case w.offer != Open:
		add(" fails", func(w *world) { w.lane.at = "look at outcome" })
	case w.fault == retractUnlocked:
		add(" loads", func(w *world) { w.lane.at = "retract late" })
	default:
		add("", withdraw)
	}
}

// outcomeSteps are the second half of JobRing.Retract, and JobRing.AwaitOffer.
func (w *world) outcomeSteps(add func(name string, change func(*world))) {
	switch {
	case w.offer == Done:
		add(" done", func(w *world) {
			w.offer, w.lane.offered = NotOffered, false
			w.admitted, w.lane.at = w.taken, "handle"
		})
	case !w.idle():
		add(" running", func(w *world) { w.lane.at = "handle" })
	case w.fault == blockWhileWorkerReceives:
		add(" running", func(w *world) { w.lane.at = "block" })
	} // else it waits
}

// handleSteps are receiver.handleQuantum with one element, JobRing.Submit, Offer and Collect.
func (w *world) handleSteps(add func(name string, change func(*world)), goTo func(at string) func(*world)) {
	switch w.lane.at {
	case "handle":
		switch {
		case w.submitted < w.admitted && w.submitted-w.collected < exploredLimit:
			add(" submits", func(w *world) { w.submitted, w.lane.at, w.lane.after = w.submitted+1, "assign", "handle" })
		case !w.lane.offered && !w.idle():
			add(" offers", func(w *world) { w.offer, w.lane.offered, w.lane.at, w.lane.after = Open, true, "assign", "collect" })
		default:
			add("", goTo("collect"))
		}
	case "assign":
		if w.attached == 0 || w.attached < w.count && w.unclaimed() {
			add("", func(w *world) { w.lane.at, w.lane.worker = "find", 0 })
		} else {
			add(" nobody", goTo(w.lane.after))
		}
	case "collect":
		switch {
		case w.collected == w.submitted:
			add(" nothing", goTo("next"))
		case w.done[w.collected]:
			add("", func(w *world) { w.collected, w.lane.at = w.collected+1, "next" })
		case w.unclaimed():
			add(" claims", func(w *world) { w.lane.job, w.claimed, w.lane.at = w.claimed, w.claimed+1, "run" })
		} // else it waits
	case "run":
		add("", func(w *world) { w.done[w.lane.job], w.lane.job, w.lane.at = true, 0, "collect" })
	default:
		w.assignSteps(add, goTo)
	}
}

// assignSteps are worker.assign, for one worker after the other.
func (w *world) assignSteps(add func(name string, change func(*world)), goTo func(at string) func(*world)) {
	switch at := &w.workers[min(w.lane.worker, w.count-1)]; w.lane.at {
	case "find":
		switch {
		case w.lane.worker == w.count:
			add(" nobody", goTo(w.lane.after))
		case at.ring:
			add(" busy", func(w *world) { w.lane.worker++ })
		default:
			add("", func(w *world) { w.attached, w.lane.at = w.attached+1, "set" })
		}
	case "set": // only this lane assigns
		add("", func(w *world) { w.workers[w.lane.worker].ring, w.lane.at = true, "wake" })
	case "wake":
		add("", func(w *world) {
			if n := &w.workers[w.lane.worker]; n.asleep {
				n.event = true
			}
			w.lane.at = w.lane.after
		})
	}
}

// workerSteps are worker.run and the functions that it calls.
func (w *world) workerSteps(i int, add func(name string, change func(*world, *workerState))) {
	goTo := func(at string) func(*world, *workerState) { return func(_ *world, n *workerState) { n.at = at } }
	switch n := &w.workers[i]; n.at {
	case "look":
		if n.ring {
			add("", goTo("claim"))
		} else {
			add("", goTo("announce sleep"))
		}
	case "announce sleep":
		add("", func(w *world, n *workerState) {
			n.asleep, n.at = true, "check"
			if w.fault == sleepUnchecked {
				n.at = "poll"
			}
		})
	case "check":
		if n.ring {
			add("", goTo("awake"))
		} else {
			add("", goTo("poll"))
		}
	case "poll":
		if n.event {
			add("", func(_ *world, n *workerState) { n.event, n.at = false, "awake" })
		}
	case "awake":
		add("", func(_ *world, n *workerState) { n.asleep, n.at = false, "look" })
	default:
		w.serveSteps(n, add, goTo)
	}
}

// serveSteps are worker.serve.
func (w *world) serveSteps(n *workerState, add func(name string, change func(*world, *workerState)), goTo func(at string) func(*world, *workerState)) {
	switch n.at {
	case "claim":
		if w.unclaimed() {
			add("", func(w *world, n *workerState) { n.job, w.claimed, n.at = w.claimed, w.claimed+1, "run" })
		} else {
			add(" nothing", goTo("claim offer"))
		}
	case "run":
		add("", func(w *world, n *workerState) { w.done[n.job], n.job, n.at = true, 0, "claim" })
	case "claim offer":
		if w.offer == Open {
			add("", func(w *world, n *workerState) { w.offer, n.at = Running, "receive" })
		} else {
			add(" none", goTo("wait"))
		}
	case "receive":
		add("", func(w *world, n *workerState) { w.reading, n.at = w.reading+1, "received" })
	case "received":
		add("", func(w *world, n *workerState) {
			w.reading, w.taken, n.at = w.reading-1, w.arrived, "offer done"
		})
	case "offer done":
		add("", func(w *world, n *workerState) { w.offer, n.at = Done, "claim" })
	case "wait":
		if w.unclaimed() || w.offer == Open {
			add(" found", goTo("claim"))
		}
		add(" gives up", func(w *world, n *workerState) { w.attached, n.at = w.attached-1, "detach" })
	case "detach":
		add("", func(_ *world, n *workerState) { n.ring, n.at = false, "look" })
	}
}

func TestNoInterleavingStallsOrReorders(t *testing.T) {
	for _, c := range []struct{ workers, elements, states int }{{1, 3, 1000}, {2, 2, 10_000}} {
		states, traces := explore(noFault, c.workers, c.elements)
		for broken, trace := range traces {
			t.Errorf("%d workers: %s:\n%s", c.workers, broken, strings.Join(trace, "\n"))
		}
		if states < c.states {
			t.Errorf("%d workers: got %d states, want at least %d", c.workers, states, c.states)
		}
		t.Logf("%d workers, %d elements: %d states", c.workers, c.elements, states)
	}
}

func TestExplorerFindsFaultsPutBack(t *testing.T) {
	for f, want := range map[fault]string{
		blockWhileWorkerReceives: "elements have arrived, and nobody handles them",
		sleepUnchecked:           "a worker that sleeps is counted as attached, and never gets a ring again",
		retractUnlocked:          "two threads receive at once",
	} {
		if _, traces := explore(f, 1, 2); traces[want] == nil {
			t.Errorf("fault %d: got %q, want %q", f, traces, want)
		} else {
			t.Logf("%s:\n%s", want, strings.Join(traces[want], "\n"))
		}
	}
}
