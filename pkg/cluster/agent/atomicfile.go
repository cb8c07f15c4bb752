// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"os"
)

// writeFileAtomically creates a file with mode 0600, atomically and durably. It writes a temporary file named after the
// pattern. put then gives it the final name, by a link or a rename.
func writeFileAtomically(dir, pattern string, text []byte, put func(from string) error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, pattern) // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = put(f.Name())
	}
	gone := os.Remove(f.Name())
	if errors.Is(gone, os.ErrNotExist) { // put has renamed it
		gone = nil
	}
	return errors.Join(err, gone, syncDir(dir))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
