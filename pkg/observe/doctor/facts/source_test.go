// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/thread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// sourceOf returns a file system with these files; a name that ends in @ is a symbolic link.
func sourceOf(files map[string]string) source {
	m := fstest.MapFS{}
	for name, text := range files {
		f := &fstest.MapFile{Data: []byte(text), Mode: 0o644}
		if link, ok := strings.CutSuffix(name, "@"); ok {
			name, f.Mode = link, fs.ModeSymlink
		}
		m[name] = f
	}
	return source{m}
}

func TestParseCPUList(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "0": {0}, "0-3": {0, 1, 2, 3}, "0,2-3,8": {0, 2, 3, 8}, "8191": {8191},
	} {
		if got, err := parseList(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, error %v, want %v, no error", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "3-1", "-1", "0-", "8192", "0-99999999", "0 1", strings.Repeat("0-8191,", 3)} {
		if got, err := parseList(text); err == nil {
			t.Errorf("%q: got %d CPUs, want an error", text, len(got))
		}
	}
}

func TestCPUMaskRoundTrip(t *testing.T) {
	for text, want := range map[string][]int{
		"0": nil, "3": {0, 1}, "00000000,0000000f": {0, 1, 2, 3}, "1,00000000": {32}, "80000000,00000001,00000000": {32, 95},
	} {
		got, err := ParseMask(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, error %v, want %v, no error", text, got, err, want)
		}
		again, err := ParseMask(Mask(got))
		if err != nil || !slices.Equal(again, want) {
			t.Errorf("%q: got mask %q, which does not parse to the same CPUs", text, Mask(got))
		}
	}
	for _, text := range []string{"", "x", "1,,2", "100000000", strings.Repeat("0,", 300) + "0"} {
		if got, err := ParseMask(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

func TestProcessReadsCapabilitiesAndLimits(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status, err := os.ReadFile("/proc/thread-self/status")
	expect.NoError(t, err)
	var limit unix.Rlimit
	expect.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	lower := unix.Rlimit{Cur: 12345, Max: limit.Max}
	expect.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &lower))
	defer func() { expect.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)) }()
	p := sourceOf(nil).process()
	if want := fmt.Sprintf("CapEff:\t%016x\n", p.Capabilities.Value); p.Capabilities.Err != nil || !strings.Contains(string(status), want) {
		t.Errorf("got %#x, error %v, want those of %s", p.Capabilities.Value, p.Capabilities.Err, status)
	}
	if p.Memlock.Err != nil || p.Memlock.Value != lower.Cur {
		t.Errorf("got %d, error %v, want %d", p.Memlock.Value, p.Memlock.Err, lower.Cur)
	}
	if NoLimit != unix.RLIM_INFINITY {
		t.Errorf("NoLimit: got %d, want %d", NoLimit, uint64(unix.RLIM_INFINITY))
	}
}

func TestOnlyPodOfAgentHasToken(t *testing.T) {
	const token, agent, pod = "var/run/secrets/kubernetes.io/serviceaccount/token", "usr/bin/ropewalk-agent", "dev/termination-log"
	for _, c := range []struct {
		files             map[string]string
		isAgent, isEngine bool
	}{
		{map[string]string{token: "", agent: "", pod: ""}, true, false},
		{map[string]string{agent: "", pod: ""}, false, true},
		{map[string]string{agent: ""}, false, false},          // a node with the package
		{map[string]string{token: "", pod: ""}, false, false}, // another pod
	} {
		if got := sourceOf(c.files).process(); got.AgentPod != c.isAgent || got.EnginePod != c.isEngine {
			t.Errorf("%v: got %v and %v, want %v and %v", c.files, got.AgentPod, got.EnginePod, c.isAgent, c.isEngine)
		}
	}
}

func TestCPUsAreReadFromSysfs(t *testing.T) {
	s := sourceOf(map[string]string{
		cpuDir + "/online": "0-3\n", cpuDir + "/smt/active": "1\n", "sys/devices/system/node/online": "0",
		cpuDir + "/cpu0/topology/thread_siblings_list": "0,2", cpuDir + "/cpu1/topology/thread_siblings_list": "1,3",
		cpuDir + "/cpu2/topology/thread_siblings_list": "0,2", cpuDir + "/cpu3/topology/thread_siblings_list": "1,3",
		cpuDir + "/cpu1/cpufreq/scaling_governor": "powersave\n",
		cpuDir + "/cpu0/cpuidle/state0/name":      "POLL\n", cpuDir + "/cpu0/cpuidle/state0/latency": "0\n",
		cpuDir + "/cpu0/cpuidle/state1/name": "C6\n", cpuDir + "/cpu0/cpuidle/state1/latency": "133\n", cpuDir + "/cpu0/cpuidle/state1/disable": "1\n",
		"dev/cpu_dma_latency": "\x0a\x00\x00\x00",
		"proc/4711/comm":      "ropewalk\n", "proc/4711/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.weight": "300\n", "proc/12/comm": "other\n",
	})
	want := CPU{
		Online: Known([]int{0, 1, 2, 3}), SMT: Known(true), Cores: 2, Governors: Known(map[int]string{1: "powersave"}),
		Idle:    Known([]IdleState{{Name: "POLL"}, {Name: "C6", Latency: 133 * time.Microsecond, Off: true}}),
		Latency: Known(10 * time.Microsecond), Nodes: Known([]int{0}),
		Group: Known(thread.Group{Cgroup: "/a", Weight: 300, Usual: 100}), Daemon: 4711,
	}
	if diff := cmp.Diff(want, s.cpu()); diff != "" {
		t.Error(diff)
	}
}

func TestSocketsHaveOwners(t *testing.T) {
	s := sourceOf(map[string]string{"proc/42/comm": "unbound\n", "proc/42/fd/3@": "socket:[4711]", "proc/42/fd/4@": "/dev/null", "proc/x/comm": "x"})
	list := []Socket{
		{Addr: netip.MustParseAddrPort("127.0.0.1:51820"), Inode: 4711},
		{Addr: netip.MustParseAddrPort("0.0.0.0:51821")},
		{Addr: netip.MustParseAddrPort("[2001:db8::1]:51820"), Inode: 4712},
	}
	want := slices.Clone(list)
	want[0].PID, want[0].Process = 42, "unbound"
	s.setOwners(list, func(k Socket) bool { return k.Addr.Port() == 51820 })
	if !slices.Equal(list, want) {
		t.Errorf("got %+v, want %+v", list, want)
	}
}

const interrupts = `           CPU0       CPU1
 37:          0          0 PCI-MSIX-0000:00:03.0   0-edge      virtio2-config
 38:          0      31587 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 39:      26907          0 PCI-MSIX-0000:00:03.0   2-edge      virtio2-output.0
 40:          0      31587 PCI-MSIX-0000:00:03.0   3-edge      virtio2-input.1
 41:          0      31587 PCI-MSIX-0000:00:04.0   1-edge      other-rx
NMI:          0          0   Non-maskable interrupts
`

func TestReceiveQueueIRQsAreFound(t *testing.T) {
	pci := "sys/devices/pci0000:00/0000:00:03.0"
	s := sourceOf(map[string]string{
		"proc/interrupts": interrupts, "proc/irq/38/effective_affinity_list": "1\n", "proc/irq/38/smp_affinity_list": "0-1\n",
		"proc/irq/40/effective_affinity_list": "\n", "proc/irq/40/smp_affinity_list": "0-1\n",
		"sys/class/net/eth0@": "../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0",
		pci + "/msi_irqs/37":  "msix", pci + "/msi_irqs/38": "msix", pci + "/msi_irqs/39": "msix", pci + "/msi_irqs/40": "msix",
	})
	want := []IRQ{{38, "virtio2-input.0", []int{1}}, {40, "virtio2-input.1", []int{0, 1}}}
	got, err := s.irqs("eth0")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestIrqbalanceIsFoundByName(t *testing.T) {
	for comm, want := range map[string]bool{"irqbalance\n": true, "bash\n": false} {
		got, err := sourceOf(map[string]string{"proc/7/comm": comm}).isRunning("irqbalance")
		if got != want || err != nil {
			t.Errorf("%q: got %v, error %v, want %v, no error", comm, got, err, want)
		}
	}
	if _, err := sourceOf(nil).isRunning("irqbalance"); err == nil {
		t.Error("isRunning without /proc: got no error")
	}
}

// malformedTexts are file contents that no kernel writes.
func malformedTexts() []string {
	return []string{
		"", "\x00", "-1", "99999999999999999999", "0-99999999", "%s%n", strings.Repeat("A", 1<<16), strings.Repeat("0,", 1<<16),
		"a:b:c\n:::\n", "\n\n\n",
	}
}

func TestMalformedFilesStayWithinBounds(t *testing.T) {
	for _, text := range malformedTexts() {
		s := sourceOf(map[string]string{
			"proc/interrupts": text, "proc/irq/38/effective_affinity_list": text, "proc/1/comm": text, "proc/1/fd/3@": text,
			cpuDir + "/online": text, cpuDir + "/smt/active": text, cpuDir + "/cpu0/cpufreq/scaling_governor": text,
			cpuDir + "/cpu0/cpuidle/state0/latency": text, cpuDir + "/cpu0/topology/thread_siblings_list": text, "dev/cpu_dma_latency": text,
			"sys/devices/system/node/online": text, "sys/class/net/eth0/ifindex": "2", "sys/class/net/eth0/speed": text,
			"sys/class/net/eth0/queues/rx-0/rps_cpus": text, "sys/class/net/eth0/queues/tx-0/xps_cpus": text,
			"sys/class/net/eth0/device/numa_node": text, "sys/class/net/hostile@": "../../../../../etc",
		})
		s.process()
		c := s.cpu()
		if len(c.Online.Value) > maxCPUs {
			t.Errorf("got %d processors, want at most %d", len(c.Online.Value), maxCPUs)
		}
		s.setOwners([]Socket{{Inode: 1}}, func(Socket) bool { return true })
		_, _ = s.irqs("eth0")
		if irqs, err := s.irqs("hostile"); err == nil && len(irqs) > 0 {
			t.Errorf("read %v behind a symbolic link out of sysfs", irqs)
		}
		n := NIC{Name: "eth0", Index: 2}
		s.sysfs(&n)
		for queue, cpus := range n.RPS.Value {
			if len(cpus) > maxCPUs {
				t.Errorf("%s: got %d CPUs, want at most %d", queue, len(cpus), maxCPUs)
			}
		}
		f := &Facts{}
		s.readNetwork(f)
		s.clock(time.Now())
	}
}

func TestLongFilesAreTruncated(t *testing.T) {
	text, err := sourceOf(map[string]string{"proc/x": strings.Repeat("x", maxFile+5)}).text("proc/x")
	if err != nil || len(text) != maxFile {
		t.Errorf("got %d bytes, error %v, want %d, no error", len(text), err, maxFile)
	}
}

func TestLowerDeviceCyclesTerminate(t *testing.T) {
	s := sourceOf(map[string]string{"sys/class/net/a/lower_b/x": "", "sys/class/net/b/lower_a/x": "", "sys/class/net/b/lower_c/x": ""})
	for _, l := range s.below(nil, candidate{device: "a"}, maxDepth) {
		if l.device == "" {
			t.Error("a device without a name")
		}
	}
}

func TestDeviceOfRoutesIsNotBelowAnother(t *testing.T) {
	s := sourceOf(map[string]string{"sys/class/net/bond0.7/lower_bond0/x": "", "sys/class/net/bond0/lower_a/x": "", "sys/class/net/bond0/lower_b/x": ""})
	var leaves []candidate
	for _, device := range []string{"bond0.7", "b", "bond0.7"} {
		leaves = s.below(leaves, candidate{device: device}, maxDepth)
	}
	got := map[string]string{}
	for _, l := range leaves {
		got[l.device] = l.above
	}
	if want := map[string]string{"a": "bond0.7", "b": ""}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSysfsOfOtherNamespaceIsIgnored(t *testing.T) {
	s := sourceOf(map[string]string{"sys/class/net/eth0/ifindex": "3", "sys/class/net/eth0/queues/rx-0/rps_cpus": "1"})
	n := NIC{Name: "eth0", Index: 2}
	s.sysfs(&n)
	if n.RPS.Err == nil || n.IRQs.Err == nil || n.XPS.Err == nil {
		t.Errorf("got %+v, want RPS.Err non-nil, IRQs.Err non-nil, XPS.Err non-nil", n)
	}
}

func TestMissingFileReturnsErrNotExist(t *testing.T) {
	if _, err := sourceOf(nil).text("proc/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func FuzzParseList(f *testing.F) {
	for _, text := range []string{"0-3,8", "", "0-8191", "x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if list, err := parseList(text); err == nil && len(list) > 3*maxCPUs {
			t.Errorf("%d processors", len(list))
		}
	})
}

func FuzzParseMask(f *testing.F) {
	for _, text := range []string{"0", "ff", "1,00000000", "zz"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseMask(text)
		if err != nil {
			return
		}
		if again, err := ParseMask(Mask(list)); err != nil || !slices.Equal(list, again) {
			t.Errorf("%q: %v, then %v (%v)", text, list, again, err)
		}
	})
}

func FuzzParseInterrupts(f *testing.F) {
	f.Add(interrupts)
	f.Add(": \n1:\n")
	f.Fuzz(func(_ *testing.T, text string) {
		for _, name := range parseInterrupts(text) {
			isReceiveQueueIRQ(name)
		}
	})
}
