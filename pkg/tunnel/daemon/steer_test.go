// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestThreadSchedulingFailureIsLoggedOnce(t *testing.T) {
	var b bytes.Buffer
	begin := ownThread(slog.New(slog.NewTextHandler(&b, nil)), 0)
	var loops sync.WaitGroup
	for range 4 {
		loops.Go(func() { begin("a\x00b") }) // an invalid thread name
	}
	loops.Wait()
	if n := strings.Count(b.String(), "\n"); n != 1 || !strings.Contains(b.String(), "level=WARN") {
		t.Errorf("%d lines:\n%s", n, b.String())
	}
}

// TestYieldingLoopPreemptsNobody: a policy that the process has inherited, as from chrt(1), stays as it is.
func TestYieldingLoopPreemptsNobody(t *testing.T) {
	begin := ownThread(slog.New(slog.DiscardHandler), 1)
	var loop sync.WaitGroup
	defer loop.Wait()
	loop.Go(func() {
		before, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Error(err)
			return
		}
		yield := begin("tx0")
		for _, y := range []bool{true, false} {
			yield(y)
			want := before.Policy
			if y && want == unix.SCHED_NORMAL {
				want = unix.SCHED_BATCH
			}
			if attr, err := unix.SchedGetAttr(0, 0); err != nil || attr.Policy != want {
				t.Errorf("yield %v: got policy %d, %v, want %d", y, attr.Policy, err, want)
			}
		}
	})
}
