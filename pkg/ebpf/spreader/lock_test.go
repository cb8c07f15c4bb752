// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// hold locks the directory as another process would.
func (r *rig) hold(dir string) *os.File {
	r.Helper()
	f, err := os.Open(dir)
	expect.NoError(r, err)
	r.Cleanup(func() { f.Close() })
	expect.NoError(r, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	return f
}

func TestLockOnBPFFSRootBlocksNobody(t *testing.T) {
	r := newRig(t)
	r.hold(r.fs)
	r.here.attach(r.here.config())
	if st := r.here.status(); st == nil {
		t.Error("status is missing")
	}
	r.here.detach(0)
	r.here.clean()
}

// allCalls calls each method that waits for the lock, and returns the errors.
func (s *side) allCalls(ctx context.Context) (errs []error) {
	s.do(func() error {
		_, attach := s.host.Attach(ctx, s.config())
		_, status := s.host.Status(ctx, "")
		errs = []error{attach, status, s.host.Detach(ctx, 0)}
		return nil
	})
	return errs
}

func TestLockWaitEndsWithContext(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	r.hold(filepath.Join(r.fs, "ropewalk", "spread"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range r.here.allCalls(ctx) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("unexpected error %v", err)
		}
	}
}

func TestLockTimeoutNamesHolder(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	f := r.hold(filepath.Join(r.fs, "ropewalk", "spread"))
	r.here.host.lockTimeout = time.Millisecond
	for _, err := range r.here.allCalls(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(process %d): retry", os.Getpid())) ||
			!strings.Contains(err.Error(), r.fs+"/ropewalk/spread") {
			t.Errorf("unexpected error %v", err)
		}
	}
	r.here.host.lockTimeout = 0
	expect.NoError(r, f.Close())
	r.here.detach(0)
	r.here.clean()
}

// TestLockFollowsReplacedDirectory: a lock on a directory that was removed while waiting must not count.
func TestLockFollowsReplacedDirectory(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.fs, "ropewalk", "spread")
	expect.NoError(r, os.MkdirAll(dir, 0o700))
	held := r.hold(dir)
	done := make(chan []error)
	go func() { done <- r.here.allCalls(t.Context()) }()
	expect.NoError(r, os.Remove(dir))
	expect.NoError(r, held.Close())
	for _, err := range <-done {
		expect.NoError(r, err)
	}
	r.here.clean()
}

func TestDirectoryOfOtherUserIsRejected(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.fs, "ropewalk")
	expect.NoError(r, os.Mkdir(dir, 0o755))
	expect.NoError(r, os.Chown(dir, 4711, 4711))
	for _, err := range r.here.allCalls(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), dir+" belongs to user 4711") {
			t.Errorf("unexpected error %v", err)
		}
	}
	expect.NoError(r, os.Remove(dir))
	r.here.attach(r.here.config())
}
