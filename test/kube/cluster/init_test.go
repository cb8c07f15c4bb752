// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// initName is what this test's binary is called as a machine's first process.
const initName = "machine-init"

// beInit is the first process of a machine, in namespaces of its own. It mounts what a machine mounts at boot, writes a line,
// and reaps orphans until its standard input ends. Then the kernel ends all processes of the machine.
func beInit(dir, name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	if err := mountAll(dir); err != nil {
		return err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	fmt.Println("ready")
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for {
		select {
		case <-ended:
			return nil
		case <-children:
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
		}
	}
}

// sysctls are those that a kubelet writes and that belong to no namespace, with the values that it wants. It writes to files
// instead.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mountAll mounts a machine's file systems. What outlives a reboot is in dir.
func mountAll(dir string) error {
	cgroups := filepath.Join(dir, "cgroups")
	m := &mounter{}
	m.mkdir(cgroups, filepath.Join(dir, "lib"), filepath.Join(dir, "log"))
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE)
	m.mount("proc", "/proc", "proc", 0)
	m.mount("/sys/fs/cgroup", cgroups, "", unix.MS_BIND|unix.MS_REC)
	m.mount("sysfs", "/sys", "sysfs", 0) // with the devices of this network namespace
	m.mount(cgroups, "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC)
	m.mount("bpf", "/sys/fs/bpf", "bpf", 0)
	m.mount("tmpfs", "/run", "tmpfs", 0)
	m.mount(filepath.Join(dir, "lib"), "/var/lib", "", unix.MS_BIND)
	m.mount(filepath.Join(dir, "log"), "/var/log", "", unix.MS_BIND)
	for name, value := range sysctls {
		file := filepath.Join("/run/sysctl", name)
		m.mkdir(filepath.Dir(file))
		m.write(file, value)
		m.mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND)
	}
	m.mount("", "/", "", unix.MS_REC|unix.MS_SHARED) // for mounts of containers
	if m.err == nil {
		m.err = unix.Unmount(cgroups, unix.MNT_DETACH)
	}
	return m.err
}

// mounter does nothing after its first error.
type mounter struct{ err error }

func (m *mounter) mount(source, target, kind string, flags uintptr) {
	if m.err == nil {
		if err := unix.Mount(source, target, kind, flags, ""); err != nil {
			m.err = fmt.Errorf("mounting %s on %s: %w", source, target, err)
		}
	}
}

func (m *mounter) mkdir(dirs ...string) {
	for _, dir := range dirs {
		if m.err == nil {
			m.err = os.MkdirAll(dir, 0o755)
		}
	}
}

func (m *mounter) write(file, text string) {
	if m.err == nil {
		m.err = os.WriteFile(file, []byte(text), 0o644)
	}
}
