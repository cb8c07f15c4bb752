// SPDX-License-Identifier: Apache-2.0

package expect_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ropewalk/ropewalk/test/expect"
)

// recorder is a test that notes how it failed.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatal(args ...any) { r.fail(fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }

func (r *recorder) fail(text string) {
	r.failure = text
	runtime.Goexit()
}

// run applies f to a test of its own, and returns its failure. The clock is fake.
func run(t *testing.T, f func(testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	synctest.Test(t, func(*testing.T) {
		var wg sync.WaitGroup
		wg.Go(func() { f(r) })
		wg.Wait()
	})
	return r.failure
}

func TestNoErrorFailsWithTheError(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{{nil, ""}, {errors.New("no such link"), "no such link"}} {
		continued := false
		got := run(t, func(tb testing.TB) {
			expect.NoError(tb, tt.err)
			continued = true
		})
		if got != tt.want || continued != (tt.err == nil) {
			t.Errorf("%v: failed with %q, continued %v", tt.err, got, continued)
		}
	}
}

func TestEventuallyReturnsWhenConditionHolds(t *testing.T) {
	calls := 0
	failure := run(t, func(tb testing.TB) {
		expect.Eventually(tb, "the tenth call", func() bool { calls++; return calls == 10 })
	})
	if failure != "" || calls != 10 {
		t.Errorf("%d calls, failed with %q", calls, failure)
	}
}

func TestEventuallyNamesUnmetCondition(t *testing.T) {
	failure := run(t, func(tb testing.TB) {
		expect.Eventually(tb, "the link is up", func() bool { return false })
	})
	if want := "timed out waiting: the link is up: the condition is still false"; failure != want {
		t.Errorf("failed with %q, want %q", failure, want)
	}
}

func TestEventuallyNoErrorReportsLastError(t *testing.T) {
	calls := 0
	failure := run(t, func(tb testing.TB) {
		expect.EventuallyNoError(tb, "a reply", func() error { calls++; return fmt.Errorf("error %d", calls) })
	})
	if want := fmt.Sprintf("timed out waiting: a reply: error %d", calls); failure != want || calls < 2 {
		t.Errorf("%d calls, failed with %q, want %q", calls, failure, want)
	}
}
