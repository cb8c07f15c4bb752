// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/bench/result"
	"github.com/ropewalk/ropewalk/test/expect"
)

// fakeRoot makes the files of settings.
func fakeRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, value := range files {
		expect.NoError(t, os.MkdirAll(filepath.Dir(root+path), 0o755))
		expect.NoError(t, os.WriteFile(root+path, []byte(value+"\n"), 0o644))
	}
	return root
}

func value(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	expect.NoError(t, err)
	return strings.TrimSpace(string(b))
}

func TestSettingsAreRestoredInReverse(t *testing.T) {
	cpu, sysctl := Offline(3), Sysctl("net.core.busy_poll", "50")
	root := fakeRoot(t, map[string]string{cpu.Path: "1", sysctl.Path: "7", Offline(1).Path: "0"})
	s := settings{root: root}
	expect.NoError(t, s.set([]Setting{cpu, sysctl, Offline(1), {sysctl.Path, "60"}}))
	if value(t, root+cpu.Path) != "0" || value(t, root+sysctl.Path) != "60" || len(s.changed) != 2 {
		t.Errorf("changed %v", s.changed)
	}
	expect.NoError(t, s.restore())
	if value(t, root+cpu.Path) != "1" || value(t, root+sysctl.Path) != "7" || value(t, root+Offline(1).Path) != "0" {
		t.Error("a setting does not have its old value")
	}
}

func TestManyChangesAreRestoredOnce(t *testing.T) {
	cpu := Offline(1)
	root := fakeRoot(t, map[string]string{cpu.Path: "1"})
	s := settings{root: root}
	for _, v := range []string{"0", "1", "0", "1", "0"} {
		expect.NoError(t, s.set([]Setting{{cpu.Path, v}}))
	}
	if want := []Setting{{cpu.Path, "1"}}; !slices.Equal(s.changed, want) {
		t.Errorf("recorded %v, want %v", s.changed, want)
	}
	expect.NoError(t, s.restore())
	if got := value(t, root+cpu.Path); got != "1" {
		t.Errorf("the CPU is %q", got)
	}
}

func TestInterruptsAndQueuesReturnToTheirCPUs(t *testing.T) {
	const irq, refuses, xps, rps = "/proc/irq/24/smp_affinity_list", "/proc/irq/25/smp_affinity_list",
		"/sys/class/net/eth0/queues/tx-0/xps_cpus", "/sys/class/net/eth0/queues/rx-0/rps_cpus"
	before := map[string]string{Offline(1).Path: "1", Offline(2).Path: "1", irq: "1", refuses: "2", xps: "6", rps: "4"}
	root := fakeRoot(t, before)
	moved := func() { // as the kernel does with a CPU that goes offline
		for _, path := range []string{irq, xps, rps} {
			expect.NoError(t, os.WriteFile(root+path, []byte("0\n"), 0o644))
		}
	}
	check := func(want map[string]string) {
		t.Helper()
		for path, v := range want {
			if got := value(t, root+path); got != v {
				t.Errorf("%s is %q, want %q", path, got, v)
			}
		}
	}
	s := settings{root: root}
	expect.NoError(t, s.set([]Setting{Offline(1), Offline(2)}))
	moved()
	expect.NoError(t, os.Remove(root+refuses))
	expect.NoError(t, os.Mkdir(root+refuses, 0o755)) // cannot be written
	expect.NoError(t, s.set([]Setting{{Offline(1).Path, "1"}}))
	check(map[string]string{Offline(1).Path: "1", Offline(2).Path: "0", irq: "1", xps: "6", rps: "4"})
	moved()
	expect.NoError(t, s.set([]Setting{Offline(1)}))
	expect.NoError(t, s.restore())
	delete(before, refuses)
	check(before)
}

func TestEndedAgentChangesNothing(t *testing.T) {
	cpu := Offline(1)
	a := &agent{settings: settings{root: fakeRoot(t, map[string]string{cpu.Path: "1"})}, cfg: AgentConfig{Dir: filepath.Join(t.TempDir(), "x")}}
	restored := ""
	a.attached = func() error {
		restored = value(t, a.settings.root+cpu.Path)
		return nil
	}
	expect.NoError(t, a.settings.set([]Setting{cpu}))
	expect.NoError(t, a.undo())
	if restored != "1" {
		t.Errorf("the CPU was %q when spread was detached, want it online before", restored)
	}
	if err := a.settings.set([]Setting{cpu}); err == nil || value(t, a.settings.root+cpu.Path) != "1" {
		t.Errorf("a setting after the end: %v", err)
	}
}

func TestSettingsOutsideOfProcAndCPUsAreRefused(t *testing.T) {
	for _, path := range []string{"/etc/passwd", "/proc/sys/../../etc/passwd", "/sys/devices/system/cpu/../../x", "/proc/sys/none"} {
		s := settings{root: fakeRoot(t, nil)}
		if err := s.set([]Setting{{path, "1"}}); err == nil || len(s.changed) > 0 {
			t.Errorf("%s: error %v, changed %v", path, err, s.changed)
		}
	}
}

func TestAgentRestoresSettingsWhenTheOtherSideEndsOrVanishes(t *testing.T) {
	for _, vanishes := range []bool{false, true} {
		cpu := Offline(1)
		root, dir := fakeRoot(t, map[string]string{cpu.Path: "1"}), filepath.Join(t.TempDir(), "programs")
		expect.NoError(t, os.Mkdir(dir, 0o700))
		in, requests := io.Pipe()
		answers, out := io.Pipe()
		cfg := AgentConfig{Dir: dir, Root: root, Silence: time.Hour}
		if vanishes {
			cfg.Silence = time.Second
		}
		ended := make(chan error, 1)
		go func() { ended <- Serve(t.Context(), in, out, cfg) }()
		w := tar.NewWriter(requests)
		expect.NoError(t, w.WriteHeader(&tar.Header{Name: "../program", Size: 4}))
		_, err := w.Write([]byte("text"))
		expect.NoError(t, errors.Join(err, w.Close()))
		c := jsonrpc.NewClient(&conn{answers, requests, requests})
		set := c.Call("Host.Set", []Setting{cpu}, new(None))
		if text, err := os.ReadFile(filepath.Join(dir, "program")); !vanishes && (err != nil || string(text) != "text") {
			t.Errorf("the program is %q, %v", text, err)
		}
		if !vanishes {
			if set != nil || value(t, root+cpu.Path) != "0" {
				t.Errorf("the CPU is not offline: %v", set)
			}
			expect.NoError(t, requests.Close())
		}
		switch err := <-ended; {
		case vanishes && (err == nil || !strings.Contains(err.Error(), "vanished")), !vanishes && err != nil:
			t.Errorf("the agent ended with %v", err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || value(t, root+cpu.Path) != "1" {
			t.Errorf("the agent left its programs (%v) or a setting", err)
		}
	}
}

func TestAgentRefusesRequestsOutOfOrder(t *testing.T) {
	a := &agent{ctx: t.Context()}
	s := rpc.NewServer()
	expect.NoError(t, s.RegisterName("Host", &Host{a}))
	var r RunReply
	if err := (&Host{a}).Run([]string{"true"}, &r); !errors.Is(err, errNoEnd) {
		t.Errorf("running a program without a tunnel: %v", err)
	}
	if err := (&Host{a}).Open(OpenArgs{Secret: "x"}, new(None)); err == nil || a.end != nil {
		t.Errorf("a wrong secret: %v", err)
	}
}

func TestUnpackRefusesTruncatedArchive(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	expect.NoError(t, w.WriteHeader(&tar.Header{Name: "p", Size: 4}))
	if err := unpack(&b, t.TempDir()); err == nil {
		t.Error("no error")
	}
}

func TestUnusableHostsAreRefused(t *testing.T) {
	good := Facts{Host: result.Host{Kernel: "5.10.0-8-amd64"}, Free: 1 << 30}
	for want, corrupt := range map[string]func(f *Facts){
		"":                        func(*Facts) {},
		"user 1000: want root":    func(f *Facts) { f.UID = 1000 },
		"Linux 5.4.0: want 5.10":  func(f *Facts) { f.Kernel = "5.4.0" },
		"Linux 4.18.0: want 5.10": func(f *Facts) { f.Kernel = "4.18.0" },
		"Linux odd: want":         func(f *Facts) { f.Kernel = "odd" },
		"doctor: capabilities":    func(f *Facts) { f.Failed = []string{"capabilities: CAP_BPF is missing"} },
		"disk is full":            func(f *Facts) { f.Free = 4096 },
		"address already in use":  func(f *Facts) { f.Busy = []string{"listen udp [::]:51820: bind: address already in use"} },
	} {
		f := good
		corrupt(&f)
		got := errors.Join(f.Problems()...)
		if want == "" && got != nil || want != "" && (got == nil || !strings.Contains(got.Error(), want)) {
			t.Errorf("got %v, want %q", got, want)
		}
	}
}

func TestHostWithoutRouteIsAClearError(t *testing.T) {
	lab, err := netlab.New("noroute")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	h, err := lab.Host("a")
	expect.NoError(t, err)
	err = h.Do(func() error {
		return (&Host{&agent{}}).Facts(FactsArgs{Far: netip.MustParseAddr("192.0.2.9")}, new(Facts))
	})
	if err == nil || !strings.Contains(err.Error(), "192.0.2.9") || !strings.Contains(err.Error(), "--addresses") {
		t.Errorf("got %v", err)
	}
}

func TestCPUListsAreParsed(t *testing.T) {
	for list, want := range map[string][]int{"0-3,8": {0, 1, 2, 3, 8}, "5": {5}, "": nil} {
		if got := cpuList(list); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", list, got, want)
		}
	}
}

func TestMachineIsRead(t *testing.T) {
	root := fakeRoot(t, map[string]string{
		"/proc/cpuinfo":                                    "processor\t: 0\nmodel name\t: Fast  CPU\nmicrocode\t: 0xd0003\n",
		"/sys/devices/system/cpu/online":                   "0-1",
		"/sys/class/dmi/id/product_name":                   "c6in.16xlarge",
		Sysctl("net.ipv4.tcp_rmem", "").Path:               "4096\t131072\t6291456",
		Sysctl("net.ipv4.tcp_congestion_control", "").Path: "cubic",
	})
	var f Facts
	f.machine(root)
	if f.Processor != "Fast CPU" || f.Microcode != "0xd0003" || f.Cores != 2 || f.Instance != "c6in.16xlarge" ||
		f.Sysctls["net.ipv4.tcp_rmem"] != "4096 131072 6291456" || f.Sysctls["net.ipv4.tcp_congestion_control"] != "cubic" {
		t.Errorf("%+v", f)
	}
}
