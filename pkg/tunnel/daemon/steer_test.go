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

func TestYieldingLoopPreemptsNobody(t *testing.T) {
	begin := ownThread(slog.New(slog.DiscardHandler), 1)
	var loop sync.WaitGroup
	defer loop.Wait()
	loop.Go(func() {
		yield := begin("tx0")
		for _, y := range []bool{true, false} {
			yield(y)
			attr, err := unix.SchedGetAttr(0, 0)
			if err != nil || (attr.Policy == unix.SCHED_BATCH) != y {
				t.Errorf("yield %v: policy %d, %v", y, attr.Policy, err)
			}
		}
	})
}
