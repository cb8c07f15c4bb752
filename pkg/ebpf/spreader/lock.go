// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
)

const (
	defaultLockTimeout = 10 * time.Second
	lockPoll           = 10 * time.Millisecond
)

// errLockTimeout is the cause with which waiting for the lock ends.
var errLockTimeout = errors.New("retry when that process has ended")

// lock excludes other processes until unlock. It locks the directory that contains the pins of all namespaces. Other users
// cannot open that, unlike the root of the file system. If create is set, the directory is created, and removed again if
// it stays empty. Otherwise the error is fs.ErrNotExist if it does not exist.
func (h *Host) lock(ctx context.Context, p pins, create bool) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(h.lockTimeout, defaultLockTimeout), errLockTimeout)
	defer cancel()
	dir := filepath.Dir(p.dir)
	for {
		if create {
			err = hook.MakePinDir(p.fs, dir)
		}
		if err == nil {
			err = hook.CheckPinDir(p.fs, p.dir)
		}
		if err != nil {
			return nil, err
		}
		f, err := lockDir(ctx, dir)
		if err == nil && f != nil {
			return func() {
				if create {
					hook.RemoveEmpty(p.fs, dir)
				}
				f.Close()
			}, nil
		}
		if err != nil && (!create || !errors.Is(err, fs.ErrNotExist)) {
			return nil, fmt.Errorf("locking %s: %w", dir, err)
		}
	}
}

// lockDir locks a directory. It returns nil if the directory was removed while it waited.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := acquire(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	var locked, there unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &locked)
	if err == nil && unix.Lstat(dir, &there) == nil && there.Ino == locked.Ino {
		return f, nil
	}
	f.Close()
	return nil, err
}

func acquire(ctx context.Context, f *os.File) error {
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("held by %s: %w", lockHolder(f), context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// lockHolder returns the process that holds a file's lock, from /proc/locks (proc_locks(5)).
func lockHolder(f *os.File) string {
	var st unix.Stat_t
	table, err := os.ReadFile("/proc/locks")
	if err = errors.Join(err, unix.Fstat(int(f.Fd()), &st)); err != nil {
		return "another process"
	}
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[5] == want {
			name, _ := os.ReadFile(filepath.Join("/proc", fields[4], "comm"))
			return fmt.Sprintf("%s (process %s)", cmp.Or(strings.TrimSpace(string(name)), "another"), fields[4])
		}
	}
	return "another process"
}
