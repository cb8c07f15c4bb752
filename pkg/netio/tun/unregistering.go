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

// The kernel unregisters the interface of a killed process some time after the signal. It frees
// the memory first, then detaches the queues one by one with a grace period each (synchronize_net
// in __tun_detach). It unregisters the interface with the last queue. A daemon that replaces the
// killed one may still find the interface.

const (
	unregisterTimeout = 2 * time.Second
	// Each scan of all processes doubles the interval to the next; on a large host a scan takes longer than the first interval.
	minRetryInterval = 10 * time.Millisecond
	maxRetryInterval = 160 * time.Millisecond
	// liveOwnerChecks is how many scans must find a live owner: one may fall between the signal and the process's
	// exit.
	liveOwnerChecks = 2
)

// attachFirstWithRetry is attachFirst, but waits while an interface of that name is unregistering. proc is the proc
// filesystem.
func attachFirstWithRetry(c *Config, proc fs.FS) (fd int, name string, err error) {
	deadline, live, logged := time.Now().Add(unregisterTimeout), 0, false
	for pause := minRetryInterval; ; pause = min(2*pause, maxRetryInterval) {
		fd, name, err = attachFirst(c)
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) || time.Now().After(deadline) || !isReusable(c.Name) {
			return fd, name, err
		}
		if hasLiveOwner(proc, c.Name) {
			if live++; live == liveOwnerChecks {
				return fd, name, err
			}
		} else if !logged && c.Log != nil {
			c.Log.Info("interface name is in use by no known process, waiting until the kernel removes that interface: after the timeout the start fails",
				"interface", c.Name, "timeout", unregisterTimeout, "hint", "if it stays and no container uses it: ip link delete "+c.Name)
			logged = true
		}
		time.Sleep(pause)
	}
}

// isReusable reports whether the interface is of a kind that Open creates: deleted with its process, or persistent
// and reusable afterwards. An interface deleted meanwhile may have been.
func isReusable(name string) bool {
	l, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return true
	}
	t, ok := l.(*netlink.Tuntap)
	return ok && t.Mode == netlink.TUNTAP_MODE_TUN && t.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 &&
		(t.NonPersist || t.Attrs().Alias == persistentAlias && t.Queues > 0)
}

// hasLiveOwner reports whether a live process has a queue of an interface of that name. It sees other users'
// processes only with the privilege to (ptrace_may_access). It cannot tell apart interfaces of the same name in two
// namespaces.
func hasLiveOwner(proc fs.FS, name string) bool {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return true // unknown without a proc filesystem
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil && hasQueue(proc, e.Name(), name) && !isExitingProcess(proc, e.Name()) {
			return true
		}
	}
	return false
}

// hasQueue reports whether a process has a queue of an interface of that name. A process that has closed its files
// has none.
func hasQueue(proc fs.FS, pid, name string) bool {
	files, err := fs.ReadDir(proc, path.Join(pid, "fd"))
	if err != nil {
		return false
	}
	for _, f := range files {
		// In another mount namespace the device may have another path.
		target, err := fs.ReadLink(proc, path.Join(pid, "fd", f.Name()))
		if err != nil || !strings.HasSuffix(target, "net/tun") {
			continue
		}
		info, err := fs.ReadFile(proc, path.Join(pid, "fdinfo", f.Name()))
		if err == nil && procField(info, "iff:") == name {
			return true
		}
	}
	return false
}

// The places in /proc where the kernel shows that a thread is about to exit.
const (
	pfExiting   = 0x4                     // PF_EXITING in the flags of /proc/PID/task/TID/stat
	flagsColumn = 6                       // counted after the command name
	sigkill     = 1 << (unix.SIGKILL - 1) // in the masks of pending signals
)

// isExitingProcess reports whether a process is about to exit. Each thread clears its pending SIGKILL a moment before
// it gets PF_EXITING, and may be delayed just there. So one exiting thread suffices; at worst the caller scans once
// more.
func isExitingProcess(proc fs.FS, pid string) bool {
	status, err := fs.ReadFile(proc, path.Join(pid, "status"))
	if err != nil {
		return isNotFound(err)
	}
	if state := procField(status, "State:"); strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X") {
		return true
	}
	threads, err := fs.ReadDir(proc, path.Join(pid, "task"))
	if err != nil {
		return isNotFound(err)
	}
	for _, thread := range threads {
		if dir := path.Join(pid, "task", thread.Name()); hasPendingKill(proc, dir) || isExitingThread(proc, dir) {
			return true
		}
	}
	return false
}

func isNotFound(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// hasPendingKill reports whether SIGKILL is pending for a thread.
func hasPendingKill(proc fs.FS, thread string) bool {
	status, err := fs.ReadFile(proc, path.Join(thread, "status"))
	if err != nil {
		return false
	}
	for _, key := range []string{"SigPnd:", "ShdPnd:"} {
		if mask, err := strconv.ParseUint(procField(status, key), 16, 64); err == nil && mask&sigkill != 0 {
			return true
		}
	}
	return false
}

// isExitingThread reports whether a thread has PF_EXITING set.
func isExitingThread(proc fs.FS, thread string) bool {
	stat, err := fs.ReadFile(proc, path.Join(thread, "stat"))
	if err != nil {
		return false
	}
	columns := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(columns) <= flagsColumn {
		return false
	}
	flags, err := strconv.ParseUint(string(columns[flagsColumn]), 10, 64)
	return err == nil && flags&pfExiting != 0
}

// procField returns the value of the first line that starts with key, "" if there is none.
func procField(text []byte, key string) string {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), key); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
