// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Sweep removes the namespaces, devices and processes of labs whose owner has ended without closing them. It does not change
// labs that are in use by this or another process.
func Sweep() error {
	entries, err := os.ReadDir(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweeping old labs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if err := sweepLab(e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("sweeping old lab %s: %w", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

func sweepLab(name string) error {
	lock, err := os.OpenFile(filepath.Join(stateDir, name), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return explain(err)
	}
	if !tryLock(lock) {
		return lock.Close()
	}
	namespaces, err := filepath.Glob(filepath.Join(netnsDir, name+"-*"))
	errs := []error{err}
	for _, path := range namespaces {
		errs = append(errs, removeNamespace(filepath.Base(path)))
	}
	if err := errors.Join(errs...); err != nil {
		return errors.Join(explain(err), lock.Close())
	}
	return release(lock)
}

// claim creates and locks a lab's state file. It returns nil without an error if the name is taken.
func claim(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !tryLock(f) {
		return nil, f.Close()
	}
	return f, nil
}

// tryLock locks the file. It fails if another process has locked or removed it: a Sweep may do so between the file's creation
// and tryLock.
func tryLock(f *os.File) bool {
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	locked, err := f.Stat()
	if err != nil {
		return false
	}
	current, err := os.Stat(f.Name())
	return err == nil && os.SameFile(locked, current)
}

// release removes the state file and then unlocks it, so that no other process finds it unlocked.
func release(lock *os.File) error {
	return errors.Join(os.Remove(lock.Name()), lock.Close())
}

// removeNamespace kills the processes and deletes the devices in a named namespace, then removes the namespace.
func removeNamespace(name string) error {
	if strings.ContainsRune(name, '/') {
		return fmt.Errorf("removing network namespace %q: the name contains a slash", name)
	}
	path := filepath.Join(netnsDir, name)
	if mounted(path) {
		if err := errors.Join(killProcesses(path), removeLinks(path)); err != nil {
			return fmt.Errorf("emptying namespace %s: %w", name, err)
		}
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting namespace %s: %w", name, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing namespace %s: %w", name, err)
	}
	return nil
}

// shareNamespaces makes the directory of namespaces a mount point with shared propagation, as the
// first `ip netns add` after a boot does. See netns_add in iproute2's ip/ipnetns.c, which takes
// the same lock. If ip did this later, each existing namespace would have a second mount, hidden
// below the new mount point. Its removal would fail with EBUSY.
func shareNamespaces() (err error) {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(netnsDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", netnsDir, err)
	}
	err = unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) { // EINVAL: it is no mount point
		return err
	}
	if err := unix.Mount(netnsDir, netnsDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", netnsDir, err)
	}
	return unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
}

// mounted reports whether a namespace is mounted at path. A process that was killed between creating the file and mounting
// the namespace on it leaves a plain file.
func mounted(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}
