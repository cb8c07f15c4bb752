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

// maxRestarts is the maximum number of restarts of a machine. A third stall or failed boot is considered a fault.
const maxRestarts = 2

// errStalled reports that a machine stalled and was powered off: see watch.
var errStalled = errors.New("the machine stalled")

// mayRestart reports whether a machine whose run ended with err is restarted. A busy host can
// cause a stall or a failed boot, so neither alone is a failure. A kernel may find no working
// timer under emulation. After a failed test or a kernel oops the stall may be ropewalk's fault,
// and the run has failed anyway. An oops by the emulator's fault is none.
func mayRestart(err error, r *results, restarts int) bool {
	mayBeHost := r.begun == 0 || r.emulator || errors.Is(err, errStalled) && r.oops == "" && len(r.withOutcome(failed)) == 0 && r.exitCode == 0
	return mayBeHost && restarts < maxRestarts
}

// runMachine runs steps on one machine. After a stall or a failed boot it logs that and restarts the machine with the remaining
// steps. boot boots a machine with the given steps and passes its console to r.
func runMachine(ctx context.Context, r *results, steps []plan.Step, boot func(context.Context, []plan.Step) error,
	logf func(format string, args ...any),
) error {
	for restarts := 0; ; restarts++ {
		err := boot(ctx, r.remaining(steps))
		if err == nil || ctx.Err() != nil || !mayRestart(err, r, restarts) {
			return joinErrors(err, r)
		}
		interrupted := r.removeInterrupted()
		logf("%v; restart %d of %d with the unfinished tests, beginning with the interrupted ones: %s",
			err, restarts+1, maxRestarts, strings.Join(interrupted, ", "))
	}
}

// joinErrors joins the machine's error and the tests' error.
func joinErrors(err error, r *results) error {
	testErr := r.Err()
	if err != nil && errors.Is(testErr, errNoMarker) {
		return err
	}
	return errors.Join(err, testErr)
}

// removeInterrupted removes the interrupted tests from the results and returns them. Tests that ended keep their outcome.
func (r *results) removeInterrupted() []string {
	interrupted := r.withOutcome(lost)
	for _, test := range interrupted {
		delete(r.outcome, test)
	}
	r.order = slices.DeleteFunc(r.order, func(test string) bool { return r.outcome[test] == "" })
	r.step, r.done = "", false
	if r.begun == 0 || r.emulator {
		r.oops, r.emulator = "", false // of a boot that failed, or of the emulator
	}
	r.restarts++
	var tests []string
	for _, test := range interrupted {
		tests = append(tests, topLevel(test))
	}
	return unique(tests)
}

// skipTests adds tests to the -test.skip argument of a test binary.
func skipTests(argv []string, tests ...string) []string {
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

// remaining returns the steps that have not ended. Each step skips the tests that have ended.
func (r *results) remaining(steps []plan.Step) []plan.Step {
	var left []plan.Step
	for _, s := range steps {
		if r.ended[s.Name] {
			continue
		}
		var ended []string
		for _, test := range r.order {
			name, ok := strings.CutPrefix(test, s.Name+".")
			if ok && topLevel(name) == name {
				ended = append(ended, regexp.QuoteMeta(name))
			}
		}
		if len(ended) > 0 {
			s.Argv = skipTests(s.Argv, ended...)
		}
		left = append(left, s)
	}
	return left
}

// failedSteps returns the steps that ended with an error. Each step skips the tests that passed or were skipped. It returns none if
// the kernel had an oops or not all steps ran, because a second run would prove nothing.
func (r *results) failedSteps(steps []plan.Step) []plan.Step {
	if r.oops != "" || !r.done {
		return nil
	}
	var list []plan.Step
	for _, s := range steps {
		if !r.failed[s.Name] {
			continue
		}
		var good []string
		for _, test := range r.order {
			name, ok := strings.CutPrefix(test, s.Name+".")
			if o := r.outcome[test]; ok && topLevel(name) == name && (o == passed || o == skipped) {
				good = append(good, regexp.QuoteMeta(name))
			}
		}
		if len(good) > 0 {
			s.Argv = skipTests(s.Argv, good...)
		}
		list = append(list, s)
	}
	return list
}

// retryFailed runs the failed steps once more on a separate machine. An emulated machine on a busy
// host may be too slow for a deadline. err is the error of the first run. retryFailed returns nil
// if the second run passes, and both errors otherwise.
func retryFailed(ctx context.Context, r *results, err error, steps []plan.Step,
	run func(context.Context, *results, []plan.Step) error, logf func(format string, args ...any),
) error {
	again := r.failedSteps(steps)
	if err == nil || len(again) == 0 || ctx.Err() != nil {
		return err
	}
	logf("%v; running the failed steps once more", err)
	next := newResults()
	if retryErr := run(ctx, next, again); retryErr != nil {
		return errors.Join(err, retryErr)
	}
	for _, test := range next.order {
		if _, known := r.outcome[test]; !known {
			r.order = append(r.order, test)
		}
		if r.outcome[test] = next.outcome[test]; next.outcome[test] == passed {
			r.outcome[test] = passedSecond
		}
		r.seconds[test] = next.seconds[test]
	}
	return nil
}
