// SPDX-License-Identifier: Apache-2.0

// Package expect has the assertions that the tests of all packages share.
package expect

import (
	"errors"
	"testing"
	"time"
)

// patience bounds a wait, in case of a fault: far beyond what a loaded or emulated machine needs.
const patience = 3 * time.Minute

// A condition is checked after pauses that double: a short wait ends at once, and a long one takes little CPU time.
const (
	firstPause = 100 * time.Microsecond
	lastPause  = 100 * time.Millisecond
)

var errFalse = errors.New("the condition is still false")

// NoError ends the test if err is not nil.
func NoError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Eventually calls cond until it returns true. It ends the test after three minutes; what
// describes the condition.
func Eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	EventuallyNoError(tb, what, func() error {
		if !cond() {
			return errFalse
		}
		return nil
	})
}

// EventuallyNoError is Eventually for a function that reports success with nil. The test ends with its last error.
func EventuallyNoError(tb testing.TB, what string, try func() error) {
	tb.Helper()
	deadline := time.Now().Add(patience)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("timed out waiting: %s: %v", what, err)
		}
		time.Sleep(pause)
	}
}
