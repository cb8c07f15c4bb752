// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kernel takes its time to end a process: its memory goes first, then its queues, one by one with a grace period each
// (synchronize_net in __tun_detach), and only with the last of them the interface. Whoever takes the place of a daemon that was
// killed finds its interface there for a moment.

const (
	patience = 2 * time.Second
	// The first interval between two looks at all processes, which on a large host take longer than that, is doubled each time.
	interval     = 10 * time.Millisecond
	lastInterval = 160 * time.Millisecond
	// enough is how often a process must have been seen to live: once may be between its signal and its end.
	enough = 2
)

// awaitFirst is attachFirst, and waits while the name is that of an interface that is going away. proc is the proc filesystem.
func awaitFirst(c *Config, proc fs.FS) (fd int, name string, err error) {
	until, living, told := time.Now().Add(patience), 0, false
	for pause := interval; ; pause = min(2*pause, lastInterval) {
		fd, name, err = attachFirst(c)
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) || time.Now().After(until) || !isOfOurKind(c.Name) {
			return fd, name, err
		}
		if held(proc, c.Name) {
			if living++; living == enough {
				return fd, name, err
			}
		} else if !told && c.Log != nil {
			c.Log.Info("waiting for an interface whose process has ended, or is not to be seen", "interface", c.Name)
			told = true
		}
		time.Sleep(pause)
	}
}

// isOfOurKind tells whether the interface is one that ends with its process, or that can be adopted then, as Open makes them. One that
// is gone by now may have been.
func isOfOurKind(name string) bool {
	l, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return true
	}
	t, ok := l.(*netlink.Tuntap)
	return ok && t.Mode == netlink.TUNTAP_MODE_TUN && t.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 &&
		(t.NonPersist || t.Attrs().Alias == persistentAlias && t.Queues > 0)
}

// held tells whether a process that lives has a queue of an interface of that name. Others' it sees only with the right to
// (ptrace_may_access); it takes one of another namespace for one of ours.
func held(proc fs.FS, name string) bool {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return true // without a proc filesystem nobody knows
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil && hasQueue(proc, e.Name(), name) && !isDying(proc, e.Name()) {
			return true
		}
	}
	return false
}

// hasQueue tells whether a process has a queue of an interface of that name. A process that has closed its files has none.
func hasQueue(proc fs.FS, pid, name string) bool {
	files, err := fs.ReadDir(proc, path.Join(pid, "fd"))
	if err != nil {
		return false
	}
	for _, f := range files {
		// In another root the device may be at another place.
		target, err := fs.ReadLink(proc, path.Join(pid, "fd", f.Name()))
		if err != nil || !strings.HasSuffix(target, "net/tun") {
			continue
		}
		info, err := fs.ReadFile(proc, path.Join(pid, "fdinfo", f.Name()))
		if err == nil && field(info, "iff:") == name {
			return true
		}
	}
	return false
}

// Where the kernel says that a thread is to end.
const (
	exiting     = 0x4                     // PF_EXITING in the flags of /proc/PID/task/TID/stat
	flagsColumn = 6                       // of what stands behind the command's name
	sigkill     = 1 << (unix.SIGKILL - 1) // in the masks of pending signals
)

// isDying tells whether a process is about to end. Each thread takes SIGKILL off its pending signals a moment before it counts as
// exiting, and may be kept waiting just there: so one thread that ends is enough, which at worst makes us look once more.
func isDying(proc fs.FS, pid string) bool {
	status, err := fs.ReadFile(proc, path.Join(pid, "status"))
	if err != nil {
		return isGone(err)
	}
	if state := field(status, "State:"); strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X") {
		return true
	}
	threads, err := fs.ReadDir(proc, path.Join(pid, "task"))
	if err != nil {
		return isGone(err)
	}
	for _, thread := range threads {
		if dir := path.Join(pid, "task", thread.Name()); isKilled(proc, dir) || isExiting(proc, dir) {
			return true
		}
	}
	return false
}

func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// isKilled tells whether SIGKILL waits for a thread.
func isKilled(proc fs.FS, thread string) bool {
	status, err := fs.ReadFile(proc, path.Join(thread, "status"))
	if err != nil {
		return false
	}
	for _, key := range []string{"SigPnd:", "ShdPnd:"} {
		if mask, err := strconv.ParseUint(field(status, key), 16, 64); err == nil && mask&sigkill != 0 {
			return true
		}
	}
	return false
}

// isExiting tells whether a thread is at its end.
func isExiting(proc fs.FS, thread string) bool {
	stat, err := fs.ReadFile(proc, path.Join(thread, "stat"))
	if err != nil {
		return false
	}
	columns := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(columns) <= flagsColumn {
		return false
	}
	flags, err := strconv.ParseUint(string(columns[flagsColumn]), 10, 64)
	return err == nil && flags&exiting != 0
}

// field returns what follows a key at the beginning of a line; empty if there is none.
func field(text []byte, key string) string {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), key); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
