// SPDX-License-Identifier: Apache-2.0

// Package sshlab makes two hosts out of network namespaces, each with an sshd of its own, for tests.
package sshlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

const sshd = "/usr/sbin/sshd"

// Lab is two hosts, a and b, and a third one from which ssh reaches both. Another cable connects a and b.
type Lab struct {
	// A and B are the hosts. Addrs are their addresses on the cable between them.
	A, B  *netlab.Host
	Addrs [2]netip.Addr
	// SSH is the command, to be followed by options, the destination "a" or "b", and a command.
	SSH []string
	dir string
}

// New makes a Lab for the time of a test, which it skips without root or an sshd. All files are in dir.
func New(t testing.TB) *Lab {
	t.Helper()
	if _, err := os.Stat(sshd); err != nil {
		t.Skipf("needs openssh-server: %v", err)
	}
	lab, err := netlab.New("sshlab")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	l := &Lab{dir: t.TempDir()}
	hosts := map[string]*netlab.Host{}
	for _, name := range []string{"a", "b", "from"} {
		hosts[name], err = lab.Host(name)
		expect.NoError(t, err)
	}
	l.A, l.B = hosts["a"], hosts["b"]
	connect := func(a, b *netlab.Host, at, to string) {
		_, err := lab.Cable(a, b, netlab.CableConfig{
			Queues: 2, AddrsA: []netip.Prefix{netip.MustParsePrefix(at + "/24")}, AddrsB: []netip.Prefix{netip.MustParsePrefix(to + "/24")},
		})
		expect.NoError(t, err)
	}
	connect(l.A, l.B, "192.0.2.1", "192.0.2.2")
	connect(hosts["from"], l.A, "198.51.100.3", "198.51.100.1")
	connect(hosts["from"], l.B, "203.0.113.3", "203.0.113.2")
	l.Addrs = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	l.SSH = []string{"nsenter", "--net=" + hosts["from"].Path(), "ssh", "-F", filepath.Join(l.dir, "ssh_config")}
	l.start(t)
	return l
}

// start makes keys, and starts both servers.
func (l *Lab) start(t testing.TB) {
	t.Helper()
	expect.NoError(t, os.MkdirAll("/run/sshd", 0o755)) // sshd's directory for privilege separation
	for _, name := range []string{"host", "key"} {
		l.newKey(t, name)
	}
	public, err := os.ReadFile(l.path("host.pub"))
	expect.NoError(t, err)
	known, configuration := "", ""
	for name, addr := range map[string]string{"a": "198.51.100.1", "b": "203.0.113.2"} {
		known += addr + " " + string(public)
		configuration += fmt.Sprintf("Host %s\n HostName %s\n", name, addr)
	}
	l.write(t, "known", known)
	l.write(t, "ssh_config", configuration+fmt.Sprintf("Host *\n User root\n IdentitiesOnly yes\n IdentityFile %s\n UserKnownHostsFile %s\n StrictHostKeyChecking yes\n LogLevel ERROR\n",
		l.path("key"), l.path("known")))
	expect.NoError(t, os.Rename(l.path("key.pub"), l.path("authorized")))
	l.serve(t, l.A, "198.51.100.1")
	l.serve(t, l.B, "203.0.113.2")
}

// serve starts the sshd of a host, which ends with the test.
func (l *Lab) serve(t testing.TB, h *netlab.Host, addr string) {
	t.Helper()
	file := "sshd_config-" + addr
	l.write(t, file, fmt.Sprintf("ListenAddress %s\nHostKey %s\nAuthorizedKeysFile %s\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n",
		addr, l.path("host"), l.path("authorized")))
	ctx, cancel := context.WithCancel(context.Background())
	// Mounts of its own, with the BPF file system of most hosts.
	cmd := h.Command(ctx, "unshare", "--mount", "sh", "-c", `mount -t bpf bpf /sys/fs/bpf && exec "$0" -D -e -f "$1"`, sshd, l.path(file))
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	expect.EventuallyNoError(t, "an sshd at "+addr, func() error {
		return h.Do(func() error {
			c, err := net.Dial("tcp", addr+":22")
			if err != nil {
				return err
			}
			return c.Close()
		})
	})
}

// newKey makes a key pair.
func (l *Lab) newKey(t testing.TB, name string) {
	t.Helper()
	out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", l.path(name)).CombinedOutput()
	if err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
}

// ReplaceKey makes ssh use a key that the hosts do not know.
func (l *Lab) ReplaceKey(t testing.TB) {
	t.Helper()
	expect.NoError(t, os.Remove(l.path("key")))
	l.newKey(t, "key")
}

// Kill kills all processes that run in a host's namespace and have a word in their command line, as a host that loses its power.
func (l *Lab) Kill(t testing.TB, h *netlab.Host, word string) {
	t.Helper()
	var want unix.Stat_t
	expect.NoError(t, unix.Stat(h.Path(), &want))
	processes, err := filepath.Glob("/proc/[0-9]*")
	expect.NoError(t, err)
	for _, dir := range processes {
		var ns unix.Stat_t
		line, _ := os.ReadFile(dir + "/cmdline")
		if unix.Stat(dir+"/ns/net", &ns) != nil || ns.Ino != want.Ino || !strings.Contains(string(line), word) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), "%d", &pid); err == nil && pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func (l *Lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *Lab) write(t testing.TB, name, text string) {
	t.Helper()
	expect.NoError(t, os.WriteFile(l.path(name), []byte(text), 0o600))
}
