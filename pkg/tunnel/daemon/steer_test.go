// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
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
