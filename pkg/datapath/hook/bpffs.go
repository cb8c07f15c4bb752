// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DefaultFS is where distributions and bpftool mount the BPF file system.
const DefaultFS = "/sys/fs/bpf"

// ErrNoFS is wrapped by the errors of FS: there is no BPF file system to pin in.
var ErrNoFS = errors.New("no BPF file system")

// FS returns a directory with a BPF file system that outlives the process: DefaultFS, where it is mounted, if nothing is
// there, as bpftool does.
//
// A process in a mount namespace of its own, as `ip netns exec` makes one with a fresh /sys, sees an empty DefaultFS, and
// what it mounts there goes when it ends. There FS returns the path to that of the first process.
func FS() (string, error) { return findFS(DefaultFS, "/proc/1/root"+DefaultFS, "/proc/1/ns/mnt") }

// MountedFS returns what FS would without mounting anything, or an error that is fs.ErrNotExist.
func MountedFS() (string, error) {
	for _, dir := range []string{DefaultFS, "/proc/1/root" + DefaultFS} {
		if isFS(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: %w", ErrNoFS, fs.ErrNotExist)
}

func findFS(dir, first, firstNamespace string) (string, error) {
	if isFS(dir) {
		return dir, nil
	}
	if isFS(first) {
		return first, nil
	}
	if why := passing(firstNamespace); why != "" {
		return "", fmt.Errorf("%w at %s, and one mounted from here may go with the command: %s; in the host's mount "+
			"namespace (not in ip netns exec) run `mount -t bpf -o mode=700 bpf %s`, and try again", ErrNoFS, dir, why, dir)
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return "", fmt.Errorf("%w at %s, and mounting one: %w; as root run `mount -t bpf -o mode=700 bpf %s`, and try again "+
			"(a container needs the host's: mount it as a volume)", ErrNoFS, dir, err, dir)
	}
	return dir, nil
}

func isFS(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.BPF_FS_MAGIC
}

// passing says why what is mounted now may not stay, or "".
func passing(firstNamespace string) string {
	mine, err := os.Readlink("/proc/thread-self/ns/mnt")
	first, firstErr := os.Readlink(firstNamespace)
	if err := errors.Join(err, firstErr); err != nil {
		return fmt.Sprintf("it cannot be told whether this is the host's mount namespace (%v)", err)
	}
	if mine != first {
		return "this is a mount namespace of its own"
	}
	if self, _ := os.Readlink("/proc/self"); self == "1" {
		return "its process is the first of its PID namespace"
	}
	return ""
}

// RemoveEmpty removes dir and those of its parents up to, and without, root that are empty.
func RemoveEmpty(root, dir string) {
	for dir != root && len(dir) > len(root) && os.Remove(dir) == nil {
		dir = filepath.Dir(dir)
	}
}
