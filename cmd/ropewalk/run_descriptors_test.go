// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// otherTUN creates an interface as wireguard-go and its callers do, with one queue.
func otherTUN(t *testing.T, name string, flags uint16) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	expect.NoError(t, err)
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	request, err := unix.NewIfreq(name)
	expect.NoError(t, err)
	request.SetUint16(flags)
	expect.NoError(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
	return f
}

func listenAt(t *testing.T, path string) *os.File {
	t.Helper()
	expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	expect.NoError(t, err)
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close(); os.Remove(path) })
	f, err := l.File()
	expect.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// startWith starts `ropewalk run NAME` with files as the given variables. It returns the text of its ready pipe and of its log.
func startWith(t *testing.T, name string, files map[string]*os.File) (process *exec.Cmd, announced, log string) {
	t.Helper()
	ready, theirs, err := os.Pipe()
	expect.NoError(t, err)
	defer ready.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	expect.NoError(t, err)
	defer file.Close()
	process = exec.Command("/proc/self/exe", "-test.run=^TestQuickDaemonProcess$", "--", "--spread", "off", "--", name)
	process.Env = append(os.Environ(), quickDaemonEnv+"=1", "GORACE=atexit_sleep_ms=0")
	process.Stdout, process.Stderr = file, file
	passFile(process, readyFD, theirs)
	for variable, f := range files {
		passFile(process, variable, f)
	}
	expect.NoError(t, process.Start())
	theirs.Close()
	b, err := io.ReadAll(ready)
	expect.NoError(t, err)
	if len(b) == 0 {
		_ = process.Wait()
	}
	text, err := os.ReadFile(file.Name())
	expect.NoError(t, err)
	return process, string(b), string(text)
}

const tunFlags = unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR

func TestRunAdoptsDescriptorsOfWireguardGo(t *testing.T) {
	enterNetworkNamespace(t)
	name := fmt.Sprintf("rwf%d", os.Getpid())
	tunnel, socket := otherTUN(t, name, tunFlags), listenAt(t, string(uapi.DefaultDir)+"/"+name+".sock")
	before, err := hostnet.FindLink(name)
	expect.NoError(t, err)
	process, announced, log := startWith(t, "ignored0", map[string]*os.File{tunFD: tunnel, controlFD: socket})
	if announced != name {
		t.Fatalf("got %q ready, want %q:\n%s", announced, name, log)
	}
	c, err := uapi.Dial(name)
	expect.NoError(t, err)
	defer c.Close()
	var stats struct{ Lanes []any }
	if err := c.Stats(&stats); err != nil || len(stats.Lanes) != 1 {
		t.Errorf("got %d lanes, error %v, want 1", len(stats.Lanes), err)
	}
	if after, err := hostnet.FindLink(name); err != nil || after.Index != before.Index {
		t.Errorf("got interface %d, error %v, want %d", after.Index, err, before.Index)
	}
	expect.NoError(t, process.Process.Signal(unix.SIGTERM))
	expect.NoError(t, process.Wait())
}

func TestBackgroundDaemonAdoptsDescriptors(t *testing.T) {
	enterNetworkNamespace(t)
	name := fmt.Sprintf("rwh%d", os.Getpid())
	tunnel, socket := otherTUN(t, name, tunFlags), listenAt(t, string(uapi.DefaultDir)+"/"+name+".sock")
	starter := exec.Command("/proc/self/exe", "ignored0")
	starter.Args[0] = wireguardGo // TestMain runs ropewalk
	passFile(starter, tunFD, tunnel)
	passFile(starter, controlFD, socket)
	starter.Env = append(os.Environ(), starter.Env...)
	if out, err := starter.CombinedOutput(); err != nil || string(out) != name+"\n" {
		t.Fatalf("got %q, error %v, want the name of the interface", out, err)
	}
	t.Cleanup(func() { os.Remove(filepath.Join(quick.DefaultRunDir, name+".log")) })
	c, err := uapi.Dial(name)
	expect.NoError(t, err)
	defer c.Close()
	_, err = c.Status()
	expect.NoError(t, err)
	expect.NoError(t, hostnet.DeleteLink(name))
	expect.EventuallyNoError(t, "the daemon has ended", func() error {
		if left, err := os.Stat(string(uapi.DefaultDir) + "/" + name + ".sock"); err == nil {
			return fmt.Errorf("%s is still there", left.Name())
		}
		return nil
	})
}

func TestRunRefusesUnsuitableDescriptors(t *testing.T) {
	enterNetworkNamespace(t)
	null, err := os.Open(os.DevNull)
	expect.NoError(t, err)
	defer null.Close()
	elsewhere := listenAt(t, filepath.Join(t.TempDir(), "other.sock"))
	for want, files := range map[string]map[string]*os.File{
		"interface rwplain lacks IFF_VNET_HDR": {tunFD: otherTUN(t, "rwplain", unix.IFF_TUN|unix.IFF_NO_PI)},
		"must be a queue of a TUN device":      {tunFD: null},
		"the given descriptor is no listening": {controlFD: null},
		"the given socket is not the control":  {controlFD: elsewhere},
	} {
		_, announced, log := startWith(t, fmt.Sprintf("rwg%d", os.Getpid()), files)
		if announced != "" || !strings.Contains(log, want) {
			t.Errorf("got %q ready, log\n%s\nwant %q", announced, log, want)
		}
	}
}

func TestDescriptorVariablesAreChecked(t *testing.T) {
	for value, want := range map[string]string{
		"x": "want the number of an open file descriptor, from 3 on", "-1": "from 3 on", "1": "from 3 on", "65530": "no open file descriptor of that number",
	} {
		t.Setenv(tunFD, value)
		if fd, err := inheritFD(tunFD); fd != 0 || err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "ParseUint") {
			t.Errorf("%q: got %d, error %v, want %q", value, fd, err, want)
		}
	}
	t.Setenv(tunFD, "")
	if fd, err := inheritFD(tunFD); fd != 0 || err != nil {
		t.Errorf("without a value: got %d, error %v, want none", fd, err)
	}
}
