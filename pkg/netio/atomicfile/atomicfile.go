// SPDX-License-Identifier: Apache-2.0

// Package atomicfile writes files so that a crash leaves the whole file or the one
// before. Start reading at Write.
//
// Not for other programs: it may change without notice.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Write creates or replaces a file in a directory that exists. A crash may leave PATH.tmp, which the
// next call replaces. Calls for one file wait for each other, also in other processes.
func Write(path string, text []byte, mode fs.FileMode) error {
	temporary := path + ".tmp"
	f, err := openLocked(temporary)
	if err != nil {
		return err
	}
	defer f.Close() // ends the lock
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return SyncDir(filepath.Dir(path))
}

// openLocked opens an empty file with mode 0600. It is locked until it is closed.
func openLocked(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err == nil {
			var own, now fs.FileInfo
			own, err = f.Stat()
			if err == nil {
				now, err = os.Lstat(path)
			}
			if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(own, now) { // renamed by the process before
				f.Close()
				continue
			}
			err = errors.Join(err, f.Chmod(0o600), f.Truncate(0))
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		return f, nil
	}
}

// Replace is Write with mode 0600. It also creates the directory.
func Replace(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return Write(path, text, 0o600)
}

// Remove removes a file, and the temporary file that a crash of Write has left. It succeeds if there
// is none.
func Remove(path string) error {
	return errors.Join(removeIfExists(path), removeIfExists(path+".tmp"))
}

// Create creates a file with mode 0600, and its directory. The error is fs.ErrExist if there is one.
// A crash may leave a temporary file: the name and a suffix behind a dot.
func Create(path string, text []byte) error {
	dir, name := filepath.Split(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, name+".*") // with mode 0600
	if err != nil {
		return err
	}
	if err = fill(f, text); err == nil {
		err = os.Link(f.Name(), path)
	}
	return errors.Join(err, os.Remove(f.Name()), SyncDir(dir))
}

// fill writes a new file, and closes it.
func fill(f *os.File, text []byte) error {
	_, err := f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func removeIfExists(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SyncDir makes what happened to the files of a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
