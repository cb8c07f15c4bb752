// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// MakeOwn makes the directory dir below root, for nobody else, and those between them. Its error is CheckOwn's where
// something else is there.
func MakeOwn(root, dir string) error {
	if err := CheckOwn(root, dir); err != nil { // nothing is made through a link of somebody else's
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making a place for pins: %w", err)
	}
	return CheckOwn(root, dir)
}

// CheckOwn returns an error if somebody other than root and this process's user could hide or exchange what is in the
// directory dir, by way of it or of one from root on. What is not there yet is no error. In root itself, where everybody
// may write to a BPF file system by default, the sticky bit is enough.
func CheckOwn(root, dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return fmt.Errorf("looking at %s: %w", root, err)
	}
	if foreign(&st) {
		return fmt.Errorf("%s belongs to user %d, who can exchange what is in it: run `chown 0 %s`, and try again", root, st.Uid, root)
	}
	if st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("everybody can exchange what is in %s: run `chmod 700 %s`, and try again", root, root)
	}
	below, err := filepath.Rel(root, dir)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	path := root
	for name := range strings.SplitSeq(below, string(filepath.Separator)) {
		path = filepath.Join(path, name)
		err := unix.Lstat(path, &st)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("looking at %s: %w", path, err)
		}
		if err := checkOwn(root, path, &st); err != nil {
			return err
		}
	}
	return nil
}

func foreign(st *unix.Stat_t) bool { return st.Uid != 0 && int(st.Uid) != os.Geteuid() }

func checkOwn(root, path string, st *unix.Stat_t) error {
	switch {
	case foreign(st):
		return fmt.Errorf("%s belongs to user %d, who can hide or exchange what is pinned there: remove it, keep others out "+
			"(`chmod 700 %s`), and try again", path, st.Uid, root)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is no directory: remove it, and try again", path)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("others can write to %s (mode %o): see that all in it is right, run `chmod 700 %s`, and try again",
			path, st.Mode&0o7777, path)
	}
	return nil
}
