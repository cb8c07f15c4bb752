// SPDX-License-Identifier: Apache-2.0

package adopt

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
)

// hold takes the lock as another process would.
func (r *rig) hold(dir string) *os.File {
	r.Helper()
	f, err := os.Open(dir)
	r.must(err)
	r.Cleanup(func() { f.Close() })
	r.must(unix.Flock(int(f.Fd()), unix.LOCK_EX))
	return f
}

func TestLockOnTheFileSystemsRootBlocksNobody(t *testing.T) {
	r := newRig(t)
	r.hold(r.fs)
	r.here.attach(r.here.config())
	if st := r.here.status(); st == nil {
		t.Error("no status")
	}
	r.here.detach(0)
	r.here.clean()
}

// each does all that waits for the lock, and returns the errors.
func (s *side) each(ctx context.Context) (errs []error) {
	s.do(func() error {
		_, attach := s.host.Attach(ctx, s.config())
		_, status := s.host.Status(ctx, "")
		errs = []error{attach, status, s.host.Detach(ctx, s.device, 0)}
		return nil
	})
	return errs
}

func TestWaitingForTheLockEndsWithTheContext(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	r.hold(filepath.Join(r.fs, "ropewalk", "spread"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range r.here.each(ctx) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
}

func TestWaitingForTheLockEndsAndNamesItsHolder(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	f := r.hold(filepath.Join(r.fs, "ropewalk", "spread"))
	r.here.host.patience = time.Millisecond
	for _, err := range r.here.each(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(process %d) holds it", os.Getpid())) ||
			!strings.Contains(err.Error(), r.fs+"/ropewalk/spread") {
			t.Errorf("%v", err)
		}
	}
	r.here.host.patience = 0
	r.must(f.Close())
	r.here.detach(0)
	r.here.clean()
}

// TestLockIsThatOfTheDirectoryInPlace: who waited for a directory that was removed meanwhile has the lock of nothing.
func TestLockIsThatOfTheDirectoryInPlace(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.fs, "ropewalk", "spread")
	r.must(os.MkdirAll(dir, 0o700))
	held := r.hold(dir)
	done := make(chan []error)
	go func() { done <- r.here.each(t.Context()) }()
	r.must(os.Remove(dir))
	r.must(held.Close())
	for _, err := range <-done {
		r.must(err)
	}
	r.here.clean()
}

func TestDirectoryOfAnotherUserIsRefused(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.fs, "ropewalk")
	r.must(os.Mkdir(dir, 0o755))
	r.must(os.Chown(dir, 4711, 4711))
	for _, err := range r.here.each(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), dir+" belongs to user 4711") {
			t.Errorf("%v", err)
		}
	}
	r.must(os.Remove(dir))
	r.here.attach(r.here.config())
}
