// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockFile is locked by the agent, or the cleanup, that changes the host. It is in the key directory.
	lockFile = "agent.lock"
	// lockPoll is the time between attempts to lock it.
	lockPoll = 50 * time.Millisecond
)

// instanceLock is held by the process that changes the host. The kernel releases it when the process ends.
type instanceLock struct{ file *os.File }

// try locks the file in a directory without waiting. It reports whether the lock is held.
func (l *instanceLock) try(dir string) (bool, error) {
	if l.file != nil {
		return true, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("locking %s: %w", lockFile, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return false, fmt.Errorf("locking %s: %w", lockFile, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return false, fmt.Errorf("locking %s: %w", lockFile, err)
	}
	l.file = f
	return true, nil
}

// wait locks the file as soon as no other process does, or returns when ctx ends. If locking is impossible it logs that, and returns.
func (l *instanceLock) wait(ctx context.Context, c *Config) {
	for waited := false; ctx.Err() == nil; waited = true {
		held, err := l.try(c.KeyDir)
		if err != nil {
			c.Log.Warn("locking the agent's directory failed, cannot detect another agent: if one runs, both change this node", "error", err)
		}
		if held || err != nil {
			return
		}
		if !waited {
			c.Log.Info("another agent runs on this node, waiting until that agent is stopped")
		}
		sleep(ctx, lockPoll)
	}
}

// release unlocks the file.
func (l *instanceLock) release() {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
