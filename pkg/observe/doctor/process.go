// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
)

func processChecks() []Check {
	return []Check{
		check("tun-device", "/dev/net/tun, probed by opening it", evaluateTUNDevice,
			"the tunnel is a TUN device; a container may have the device node but no permission to open it"),
		check("capabilities", "this process's effective capabilities", evaluateCapabilities,
			"CAP_NET_ADMIN creates the TUN device, CAP_BPF and CAP_PERFMON load eBPF programs, CAP_NET_RAW opens AF_XDP sockets"),
		check("memlock", "RLIMIT_MEMLOCK", evaluateMemlock,
			"AF_XDP socket memory is charged to it, and before Linux 5.11 eBPF maps are"),
		check("bpffs", "BPF file system (bpffs)", evaluateBPFFS,
			"`ropewalk spread` pins its programs there, so that they outlive the command"),
	}
}

// denied reports whether err is a missing privilege rather than a missing feature.
func denied(err error) bool { return errors.Is(err, os.ErrPermission) }

func evaluateTUNDevice(f *facts.Facts, r *recorder) {
	switch err := f.Kernel.TUNDevice; {
	case err == nil:
		r.ok("", "/dev/net/tun opens")
	case errors.Is(err, unix.ENOENT) && f.Process.AgentPod:
		r.ok("", "no /dev/net/tun: ropewalk-agent needs none, ropewalk-engine has the tunnels")
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		r.fail("", fmt.Sprintf("/dev/net/tun: %v", err), "modprobe tun\nin a container: pass the device (--device /dev/net/tun)")
	case denied(err):
		r.fail("", fmt.Sprintf("/dev/net/tun: %v", err), "run as root; in a container: allow the device c 10:200 rwm")
	default:
		r.fail("", fmt.Sprintf("/dev/net/tun: %v", err), "mknod /dev/net/tun c 10 200")
	}
}

// capability is a bit of include/uapi/linux/capability.h.
type capability struct {
	bit  int
	name string
}

func evaluateCapabilities(f *facts.Facts, r *recorder) {
	have := f.Process.Capabilities
	if have.Err != nil {
		r.unknown("", have.Err)
		return
	}
	if lacking := missingCapabilities(have.Value, capability{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}); lacking != "" {
		r.fail("", "this process lacks "+lacking, "run as root, or as a service with AmbientCapabilities=CAP_NET_ADMIN CAP_BPF CAP_PERFMON CAP_NET_RAW")
		return
	}
	if f.Process.AgentPod || f.Process.EnginePod {
		evaluatePodCapabilities(f, r)
		return
	}
	lacking := missingCapabilities(have.Value, capability{unix.CAP_BPF, "CAP_BPF"}, capability{unix.CAP_PERFMON, "CAP_PERFMON"},
		capability{unix.CAP_NET_RAW, "CAP_NET_RAW"})
	if lacking != "" {
		r.warn("", "this process lacks "+lacking, "add them to the service's AmbientCapabilities, or to the container's capabilities")
		return
	}
	r.ok("", "CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON and CAP_NET_RAW")
}

// evaluatePodCapabilities compares with the needs of the chart's pods
// (docs/kubernetes/install.md).
func evaluatePodCapabilities(f *facts.Facts, r *recorder) {
	who, value := "ropewalk-agent needs in mode mesh", "capabilities"
	var want []capability
	switch bpf := (capability{unix.CAP_BPF, "CAP_BPF"}); {
	case f.Process.EnginePod:
		who, value = "ropewalk-engine needs", "engine.capabilities"
		want = []capability{bpf, {unix.CAP_NET_RAW, "CAP_NET_RAW"}, {unix.CAP_SYS_NICE, "CAP_SYS_NICE"}}
	case f.Process.BPFFS.Err == nil:
		who, want = "ropewalk-agent needs in mode spread", []capability{bpf, {unix.CAP_PERFMON, "CAP_PERFMON"}}
	}
	if lacking := missingCapabilities(f.Process.Capabilities.Value, want...); lacking != "" {
		r.warn("", "this process lacks "+lacking+", which "+who, "add them to "+value+" of the chart")
		return
	}
	r.ok("", "all that %s", who)
}

// missingCapabilities lists the missing ones. CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON (capabilities(7)).
func missingCapabilities(have uint64, want ...capability) string {
	var names []string
	for _, c := range want {
		included := (c.bit == unix.CAP_BPF || c.bit == unix.CAP_PERFMON) && have>>unix.CAP_SYS_ADMIN&1 != 0
		if have>>c.bit&1 == 0 && !included {
			names = append(names, c.name)
		}
	}
	return strings.Join(names, ", ")
}

// minMemlock is the memory of 16 AF_XDP sockets with 4096 frames of 2 KiB, in bytes.
const minMemlock = 16 * 4096 * 2048

func evaluateMemlock(f *facts.Facts, r *recorder) {
	limit, have := f.Process.Memlock, f.Process.Capabilities
	switch {
	case limit.Err != nil:
		r.unknown("", limit.Err)
	case limit.Value == facts.NoLimit:
		r.ok("", "unlimited")
	case limit.Value >= minMemlock:
		r.ok("", "%d MiB", limit.Value>>20)
	case have.Err == nil && have.Value>>unix.CAP_IPC_LOCK&1 != 0:
		r.ok("", "%d MiB, no limit (CAP_IPC_LOCK)", limit.Value>>20)
	case f.Process.AgentPod || f.Process.EnginePod:
		r.ok("", "%d KiB: the chart's pods open no AF_XDP sockets", limit.Value>>10)
	default:
		r.warn("", fmt.Sprintf("%d KiB", limit.Value>>10), "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service")
	}
}

func evaluateBPFFS(f *facts.Facts, r *recorder) {
	switch fs := f.Process.BPFFS; {
	case fs.Err == nil:
		r.ok("", "mounted at %s", fs.Value)
	case errors.Is(fs.Err, os.ErrNotExist) && (f.Process.AgentPod || f.Process.EnginePod):
		r.ok("", "not mounted: mode mesh needs none")
	case errors.Is(fs.Err, os.ErrNotExist):
		r.warn("", "not mounted", "mount -t bpf -o mode=700 bpf /sys/fs/bpf")
	default:
		r.unknown("", fs.Err)
	}
}
