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

// Sweep removes the namespaces, devices and processes of labs whose process is gone. Labs that are in use, by this or
// by another process, are left alone.
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

// claim creates and locks a lab's state file; nil without an error means that the name is taken.
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

// tryLock takes the lock, unless somebody has it or removed the file: between creating a file and locking it a Sweep
// may come along.
func tryLock(f *os.File) bool {
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	current, err := os.Stat(f.Name())
	return err == nil && os.SameFile(mine, current)
}

// release removes the state file before it gives up the lock, so that nobody finds it unlocked.
func release(lock *os.File) error {
	return errors.Join(os.Remove(lock.Name()), lock.Close())
}

// removeNamespace takes down everything in a named namespace, then the namespace.
func removeNamespace(name string) error {
	if strings.ContainsRune(name, '/') {
		return fmt.Errorf("removing namespace %q: not a name", name)
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

// mounted reports whether a namespace is mounted at path: a process killed between creating the file and mounting the
// namespace leaves a plain file.
func mounted(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}
