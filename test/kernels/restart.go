// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

// maxRestarts is how often one machine is started again. A stall that comes a third time is no accident.
const maxRestarts = 2

// errStalled says that a machine stood still and was switched off: see watch.
var errStalled = errors.New("the machine stalled")

// mayRestart decides whether a machine whose run ended with err is started again. Only a stall is the machine's own
// fault; behind a failed test or a broken kernel it may be ours, and nothing that comes after makes the run good.
func mayRestart(err error, r *results, restarts int) bool {
	return errors.Is(err, errStalled) && r.oops == "" && len(r.withOutcome(failed)) == 0 && r.exitCode == 0 &&
		restarts < maxRestarts
}

// runMachine runs steps on one machine, again with what is left after each stall, and says so. once boots a machine for
// the steps that it is given and feeds its console to r.
func runMachine(ctx context.Context, r *results, steps []plan.Step, once func(context.Context, []plan.Step) error,
	say func(format string, args ...any),
) error {
	for restarts := 0; ; restarts++ {
		err := once(ctx, r.remaining(steps))
		if err == nil || ctx.Err() != nil || !mayRestart(err, r, restarts) {
			return verdict(err, r)
		}
		lostTests := r.reboot()
		say("%v; starting it again (%d of %d) with what it had not finished, first of all: %s",
			err, restarts+1, maxRestarts, strings.Join(lostTests, ", "))
	}
}

// verdict joins how the machine ended and what its tests say.
func verdict(err error, r *results) error {
	testErr := r.Err()
	if err != nil && errors.Is(testErr, errNoMarker) {
		return err
	}
	return errors.Join(err, testErr)
}

// reboot forgets the tests that were under way and returns them. What ended keeps its outcome.
func (r *results) reboot() []string {
	under := r.withOutcome(lost)
	for _, test := range under {
		delete(r.outcome, test)
	}
	r.order = slices.DeleteFunc(r.order, func(test string) bool { return r.outcome[test] == "" })
	r.step, r.done = "", false
	r.restarts++
	var tests []string
	for _, test := range under {
		tests = append(tests, topLevel(test))
	}
	return unique(tests)
}

// skipping returns the arguments of a test binary that leaves out these tests as well.
func skipping(argv []string, tests ...string) []string {
	const flag, end = "-test.skip=^(", ")$"
	var rest []string
	for _, arg := range argv {
		if list, ok := strings.CutPrefix(arg, flag); ok {
			tests = append(strings.Split(strings.TrimSuffix(list, end), "|"), tests...)
		} else {
			rest = append(rest, arg)
		}
	}
	return append(rest, flag+strings.Join(tests, "|")+end)
}

// remaining returns the steps that have not ended, each without the tests that have: those which reboot left.
func (r *results) remaining(steps []plan.Step) []plan.Step {
	var left []plan.Step
	for _, s := range steps {
		if r.ended[s.Name] {
			continue
		}
		var over []string
		for _, test := range r.order {
			name, ok := strings.CutPrefix(test, s.Name+".")
			if ok && topLevel(name) == name {
				over = append(over, regexp.QuoteMeta(name))
			}
		}
		if len(over) > 0 {
			s.Argv = skipping(s.Argv, over...)
		}
		left = append(left, s)
	}
	return left
}

// again returns the steps that ended ill, each without the tests that passed or do not count on this kernel; none where that would
// tell nothing: the kernel broke, or not all was run.
func (r *results) again(steps []plan.Step) []plan.Step {
	if r.oops != "" || !r.done {
		return nil
	}
	var ill []plan.Step
	for _, s := range steps {
		if !r.ill[s.Name] {
			continue
		}
		var well []string
		for _, test := range r.order {
			name, ok := strings.CutPrefix(test, s.Name+".")
			if o := r.outcome[test]; ok && topLevel(name) == name && (o == passed || o == skipped) {
				well = append(well, regexp.QuoteMeta(name))
			}
		}
		if len(well) > 0 {
			s.Argv = skipping(s.Argv, well...)
		}
		ill = append(ill, s)
	}
	return ill
}

// onceMore runs what ended ill again, on a machine that has nothing else to do: on a busy host an emulated one may be too slow for
// a deadline. Twice is a fault. err is how the first one ended, and what is returned unless the second ends well.
func onceMore(ctx context.Context, r *results, err error, steps []plan.Step,
	run func(context.Context, *results, []plan.Step) error, say func(format string, args ...any),
) error {
	ill := r.again(steps)
	if err == nil || len(ill) == 0 || ctx.Err() != nil {
		return err
	}
	say("%v; once more", err)
	next := newResults()
	if again := run(ctx, next, ill); again != nil {
		return errors.Join(err, again)
	}
	for _, test := range next.order {
		if _, known := r.outcome[test]; !known {
			r.order = append(r.order, test)
		}
		if r.outcome[test] = next.outcome[test]; next.outcome[test] == passed {
			r.outcome[test] = second
		}
		r.seconds[test] = next.seconds[test]
	}
	return nil
}
