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

// NamespacePrefix begins the names of the directories of NamespaceDir. The inode of the network namespace follows.
const NamespacePrefix = "net-"

// NamespaceDir returns the path for pins of one purpose in the present network namespace:
// ROOT/ropewalk/PURPOSE/net-INODE. Namespaces share the BPF file system, and device names and
// indices are unique per namespace only. If the inode of a deleted namespace is reused, its old
// pins are defunct.
func NamespaceDir(root, purpose string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return "", fmt.Errorf("identifying the network namespace: %w", err)
	}
	return filepath.Join(root, "ropewalk", purpose, fmt.Sprint(NamespacePrefix, st.Ino)), nil
}

// MakePinDir creates the directory dir below root, and its parents, with access for this user only. If something else
// exists there, it returns the error of CheckPinDir.
func MakePinDir(root, dir string) error {
	if err := CheckPinDir(root, dir); err != nil { // create nothing through another user's symbolic link
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the pin directory: %w", err)
	}
	return CheckPinDir(root, dir)
}

// CheckPinDir returns an error if a user other than root and this process's user could hide or
// replace files in dir. This includes any directory from root to dir. Directories that do not
// exist are no error. For root itself, which is world-writable by default in a BPF file system,
// the sticky bit suffices.
func CheckPinDir(root, dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return fmt.Errorf("checking %s: %w", root, err)
	}
	if ownedByOther(&st) {
		return fmt.Errorf("%s belongs to user %d, who can replace pins in it: run `chown 0 %s`, and retry", root, st.Uid, root)
	}
	if st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("%s is writable for all users and has no sticky bit, so they can replace pins in it: run `chmod 700 %s`, and retry", root, root)
	}
	below, err := filepath.Rel(root, dir)
	if err != nil {
		return fmt.Errorf("checking %s: %w", dir, err)
	}
	path := root
	for name := range strings.SplitSeq(below, string(filepath.Separator)) {
		path = filepath.Join(path, name)
		err := unix.Lstat(path, &st)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("checking %s: %w", path, err)
		}
		if err := checkPinDirStat(root, path, &st); err != nil {
			return err
		}
	}
	return nil
}

func ownedByOther(st *unix.Stat_t) bool { return st.Uid != 0 && int(st.Uid) != os.Geteuid() }

func checkPinDirStat(root, path string, st *unix.Stat_t) error {
	switch {
	case ownedByOther(st):
		return fmt.Errorf("%s belongs to user %d, who can hide or replace pins there: remove it, restrict access "+
			"(`chmod 700 %s`), and retry", path, st.Uid, root)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory: remove it, and retry", path)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("other users can write to %s (mode %o): verify its contents, run `chmod 700 %s`, and retry",
			path, st.Mode&0o7777, path)
	}
	return nil
}
