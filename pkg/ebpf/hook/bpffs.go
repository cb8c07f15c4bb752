// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// DefaultBPFFS is the usual mount point of the BPF file system.
const DefaultBPFFS = "/sys/fs/bpf"

// AgentBPFFS is where the manifests of ropewalk-agent mount the host's BPF file system: AppArmor's profiles for containers forbid writing
// below /sys.
const AgentBPFFS = "/run/ropewalk/bpf"

// ErrNoBPFFS is wrapped by the errors of BPFFS if there is no BPF file system.
var ErrNoBPFFS = errors.New("no BPF file system")

// candidates are where a BPF file system may be, in order. In a mount namespace of its own, such as `ip netns exec` creates with a fresh
// /sys, DefaultBPFFS is empty, and the first process has one.
func candidates() []string {
	return []string{DefaultBPFFS, AgentBPFFS, "/proc/1/root" + DefaultBPFFS}
}

// BPFFS returns a directory with a BPF file system that outlives the process. It mounts one at DefaultBPFFS if there is none,
// as bpftool does, unless a mount there would disappear with the process.
func BPFFS() (string, error) {
	return findBPFFS(candidates(), "/proc/1/ns/mnt")
}

// MountedBPFFS returns the same as BPFFS, but mounts nothing. Without a BPF file system the error is fs.ErrNotExist.
func MountedBPFFS() (string, error) {
	if i := slices.IndexFunc(candidates(), isBPFFS); i >= 0 {
		return candidates()[i], nil
	}
	return "", fmt.Errorf("%w: %w", ErrNoBPFFS, fs.ErrNotExist)
}

// findBPFFS returns the first candidate with a BPF file system, or mounts one at the first candidate.
func findBPFFS(candidates []string, firstNamespace string) (string, error) {
	if i := slices.IndexFunc(candidates, isBPFFS); i >= 0 {
		return candidates[i], nil
	}
	dir := candidates[0]
	if why := temporaryMount(firstNamespace); why != "" {
		return "", fmt.Errorf("%w at %s, and a mount made by this process may end with it: %s; in the host's mount "+
			"namespace (not in ip netns exec) run `mount -t bpf -o mode=700 bpf %s`, and retry", ErrNoBPFFS, dir, why, dir)
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return "", fmt.Errorf("%w at %s, and mounting one failed: %w; as root run `mount -t bpf -o mode=700 bpf %s`, and retry "+
			"(a container needs the host's as a volume)", ErrNoBPFFS, dir, err, dir)
	}
	return dir, nil
}

func isBPFFS(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.BPF_FS_MAGIC
}

// temporaryMount returns the reason why a mount made now would not outlive the process, or "".
func temporaryMount(firstNamespace string) string {
	mine, err := os.Readlink("/proc/thread-self/ns/mnt")
	first, firstErr := os.Readlink(firstNamespace)
	if err := errors.Join(err, firstErr); err != nil {
		return fmt.Sprintf("cannot determine whether this is the host's mount namespace (%v)", err)
	}
	if mine != first {
		return "this is not the host's mount namespace"
	}
	if self, _ := os.Readlink("/proc/self"); self == "1" {
		return "this process is the first of its PID namespace"
	}
	return ""
}

// RemoveEmpty removes dir and its parents below root, as far as they are empty.
func RemoveEmpty(root, dir string) {
	for dir != root && len(dir) > len(root) && os.Remove(dir) == nil {
		dir = filepath.Dir(dir)
	}
}
