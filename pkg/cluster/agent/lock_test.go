// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
)

func TestInstanceLockHasOneHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	var a, b instanceLock
	for _, step := range []struct {
		what string
		lock *instanceLock
		want bool
	}{{"the first", &a, true}, {"the first again", &a, true}, {"the second", &b, false}} {
		if held, err := step.lock.try(dir); err != nil || held != step.want {
			t.Errorf("%s: %v, %v", step.what, held, err)
		}
	}
	a.release()
	if held, err := b.try(dir); err != nil || !held {
		t.Errorf("after release: %v, %v", held, err)
	}
	b.release()
	if _, err := (&instanceLock{}).try("/dev/null/keys"); err == nil {
		t.Error("no error for a directory that cannot exist")
	}
}

// TestAgentWaitsForItsTurn has another agent end late, as after a node was unreachable.
func TestAgentWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{KeyDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
		var other, own instanceLock
		if held, err := other.try(cfg.KeyDir); !held || err != nil {
			t.Fatal(held, err)
		}
		over := make(chan struct{})
		go func() {
			own.wait(t.Context(), &cfg)
			close(over)
		}()
		synctest.Wait()
		select {
		case <-over:
			t.Error("two agents have the lock")
		default:
		}
		other.release()
		<-over
		if own.file == nil {
			t.Error("it does not have the lock")
		}
		own.release()
	})
}
