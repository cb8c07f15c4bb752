// SPDX-License-Identifier: Apache-2.0

// Package atomicfile writes a node's files with mode 0600, so that a crash leaves the whole file or the one before. Start reading at Replace.
//
// Not for other programs: it may change without notice.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace creates or replaces a file. It removes the temporary files that a crash of an earlier call has left. One process may call it for a file
// at a time.
func Replace(path string, text []byte) error {
	if err := removeTemporary(path); err != nil {
		return err
	}
	return write(path, text, os.Rename)
}

// Remove removes a file, and the temporary files that a crash of Replace has left. It succeeds if there is none.
func Remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, removeTemporary(path))
}

func removeTemporary(path string) error {
	left, err := filepath.Glob(path + ".*")
	for _, old := range left {
		err = errors.Join(err, os.Remove(old))
	}
	return err
}

// Create creates a file. The error is fs.ErrExist if there is one. A crash may leave a temporary file: the name and a suffix behind a dot.
func Create(path string, text []byte) error { return write(path, text, os.Link) }

// write writes a temporary file, and gives it its name by put.
func write(path string, text []byte, put func(from, to string) error) error {
	dir, name := filepath.Split(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, name+".*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = put(f.Name(), path)
	}
	gone := os.Remove(f.Name())
	if errors.Is(gone, os.ErrNotExist) { // put has renamed it
		gone = nil
	}
	return errors.Join(err, gone, SyncDir(dir))
}

// SyncDir makes what happened to the files of a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
