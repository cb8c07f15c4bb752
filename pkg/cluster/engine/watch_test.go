// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestWatchNoticesEachNewSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mesh0.sock")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var seen atomic.Int32
		go (&Client{Dir: uapi.Dir(dir), Name: "mesh0"}).Watch(ctx, func() { seen.Add(1) })
		synctest.Wait()
		for i, step := range []struct {
			what   string
			change func() error
			want   int
		}{
			{"no engine", func() error { return nil }, 0},
			{"an engine", func() error { return os.WriteFile(path, nil, 0o600) }, 1},
			{"the same engine", func() error { return nil }, 0},
			{"another one", func() error { return os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)) }, 1}, // with the same inode
			{"none any more", func() error { return os.Remove(path) }, 1},
		} {
			before := seen.Load()
			expect.NoError(t, step.change())
			time.Sleep(watchInterval + time.Duration(i+1))
			synctest.Wait()
			if n := int(seen.Load() - before); n != step.want {
				t.Errorf("%s: called %d times, want %d", step.what, n, step.want)
			}
		}
		cancel()
	})
}
