// SPDX-License-Identifier: Apache-2.0

package adopt

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

	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
)

const (
	lockPatience = 10 * time.Second
	lockPoll     = 10 * time.Millisecond
)

// errHeld is why waiting for a lock ends.
var errHeld = errors.New("try again when it has ended")

// lock keeps other processes from changing anything until unlock. It is on the directory of all namespaces' pins, which
// others cannot open, unlike the file system's root. With create the directory is made, and removed if it stays empty;
// without, the error is fs.ErrNotExist where it is not there.
func (h *Host) lock(ctx context.Context, p pins, create bool) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(h.patience, lockPatience), errHeld)
	defer cancel()
	dir := filepath.Dir(p.dir)
	for {
		if create {
			err = hook.MakeOwn(p.fs, dir)
		}
		if err == nil {
			err = hook.CheckOwn(p.fs, p.dir)
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

// lockDir returns nil if the directory was removed while it waited.
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
			return fmt.Errorf("%s holds it: %w", lockHolder(f), context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// lockHolder tells who has the lock on a file, by the kernel's table (proc_locks(5)).
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
