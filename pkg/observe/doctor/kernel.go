// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
)

func kernelChecks() []Check {
	return []Check{
		check("kernel-release", "kernel release (uname -r)", evaluateRelease,
			"ropewalk needs Linux 5.10 or later; 7.0 to 7.1-rc4 may lose all datagrams of a UDP_SEGMENT send"),
		check("kernel-btf", "kernel BTF", evaluateBTF,
			"tracing tools (bpftrace, pwru) need it; ropewalk itself does not"),
		check("udp-gso", "UDP GSO (UDP_SEGMENT), probed on a socket", evaluateUDPGSO,
			"with it, one system call sends a train of datagrams; without it, one datagram"),
		check("udp-gro", "UDP GRO (UDP_GRO), probed on a socket", evaluateUDPGRO,
			"with it, one system call receives a train of datagrams; without it, one datagram"),
		check("udp-filter", "socket filter (SO_ATTACH_FILTER) that drops trains of handshake initiations, probed on a socket", evaluateUDPFilter,
			"without it a flood of handshake initiations fills the socket buffers and displaces data, unless AF_XDP is used"),
		check("tun-offloads", "TSO and USO (TUNSETOFFLOAD), probed on a temporary TUN device", evaluateTUNOffloads,
			"with them, the TUN device passes whole trains of TCP (TSO) and UDP such as QUIC (USO); without them, single packets"),
		check("tun-steer", "TUN steering eBPF program (TUNSETSTEERINGEBPF), probed by loading it", evaluateSteer,
			"it keeps both directions of a flow on one lane; without it one lane may do all transmit work"),
		check("tcx", "tcx links, probed by attaching to a nonexistent device", evaluateTCX,
			"`ropewalk spread` attaches its programs with tcx, next to other programs; clsact filters are the fallback"),
		check("xdp-sockets", "AF_XDP sockets, probed by opening one", evaluateXDPSocket,
			"the AF_XDP underlay needs them; UDP sockets are the fallback"),
		check("bpf-jit", "eBPF JIT (net.core.bpf_jit_enable)", evaluateJIT,
			"the eBPF interpreter costs several times as much per packet").fixable(),
	}
}

func evaluateRelease(f *facts.Facts, r *recorder) {
	release := f.Kernel.Release
	is, ok := kernel.Parse(release)
	if !ok {
		r.unknown("", fmt.Errorf("release %q: want a major and a minor number", release))
		return
	}
	var rc int
	if _, after, ok := strings.Cut(release, "-rc"); ok {
		_, _ = fmt.Sscanf(after, "%d", &rc)
	}
	switch {
	case is.Before(5, 10):
		r.fail("", "Linux "+release, "boot Linux 5.10 or later")
	case is.Major == 7 && (is.Minor == 0 || is.Minor == 1 && rc > 0 && rc < 5):
		r.warn("", "Linux "+release+" may lose trains of equal datagrams through devices that divide them (commit b10b446, fixed by 78effd8 and 5f17ae0)",
			"boot Linux 7.1 or later, or a distribution kernel with both fixes")
	default:
		r.ok("", "Linux %s", release)
	}
}

func evaluateBTF(f *facts.Facts, r *recorder) {
	switch b := f.Kernel.BTF; {
	case b.Err != nil:
		r.unknown("", b.Err)
	case !b.Value:
		r.warn("", "/sys/kernel/btf/vmlinux is missing", "boot a kernel with CONFIG_DEBUG_INFO_BTF=y")
	default:
		r.ok("", "/sys/kernel/btf/vmlinux")
	}
}

func evaluateUDPGSO(f *facts.Facts, r *recorder) {
	reportProbe(r, f.Kernel.UDP.Err, f.Kernel.UDP.Value.GSO, "UDP_SEGMENT", "allow it in the seccomp profile, or boot Linux 5.10 or later")
}

func evaluateUDPGRO(f *facts.Facts, r *recorder) {
	reportProbe(r, f.Kernel.UDP.Err, f.Kernel.UDP.Value.GRO, "UDP_GRO", "boot Linux 5.12 or later (UDP_GRO is unreliable before)")
}

func evaluateUDPFilter(f *facts.Facts, r *recorder) {
	u := f.Kernel.UDP
	if u.Err == nil && !u.Value.GRO {
		r.ok("", "not needed: without UDP_GRO no trains are received")
		return
	}
	reportProbe(r, u.Err, u.Value.Filter, "SO_ATTACH_FILTER", "allow it in the seccomp profile or the security module (the daemon logs the error)")
}

func reportProbe(r *recorder, err error, there bool, name, fix string) {
	switch {
	case err != nil:
		r.unknown("", err)
	case !there:
		r.warn("", name+" does not work", fix)
	default:
		r.ok("", "%s works", name)
	}
}

func evaluateTUNOffloads(f *facts.Facts, r *recorder) {
	switch t := f.Kernel.TUN; {
	case t.Err != nil:
		r.unknown("", t.Err)
	case !t.Value.TSO:
		r.warn("", "neither TSO nor USO works", "boot a kernel whose tun module supports TUNSETOFFLOAD")
	case !t.Value.USO:
		r.warn("", "TSO works, USO does not", "boot Linux 6.2 or later")
	default:
		r.ok("", "TSO and USO work")
	}
}

func evaluateSteer(f *facts.Facts, r *recorder) {
	switch err := f.Kernel.Steer; {
	case err == nil:
		r.ok("", "the program loads")
	case errors.Is(err, unix.EPERM):
		r.unknown("", err)
	default:
		r.warn("", fmt.Sprintf("the program does not load: %v", err), steerFix(f, err))
	}
}

// steerFix returns what makes the kernel load the program. Without CAP_PERFMON verifiers follow more branches, and some give up.
func steerFix(f *facts.Facts, err error) string {
	have := f.Process.Capabilities
	switch {
	case errors.Is(err, unix.ENOSYS):
		return "boot a kernel with CONFIG_BPF_SYSCALL=y"
	case have.Err == nil && missingCapabilities(have.Value, capability{unix.CAP_PERFMON, "CAP_PERFMON"}) != "":
		return "grant CAP_PERFMON, see capabilities"
	}
	return "boot Linux 5.10 or later"
}

func evaluateTCX(f *facts.Facts, r *recorder) {
	switch err := f.Kernel.TCX; {
	case err == nil:
		r.ok("", "tcx works")
	case errors.Is(err, errors.ErrUnsupported):
		r.ok("", "no tcx (needs Linux 6.6): using clsact")
	default:
		r.unknown("", err)
	}
}

func evaluateXDPSocket(f *facts.Facts, r *recorder) {
	switch err := f.Kernel.XDPSocket; {
	case err == nil:
		r.ok("", "AF_XDP sockets open")
	case errors.Is(err, errors.ErrUnsupported):
		r.warn("", "this kernel has no AF_XDP sockets", "boot a kernel with CONFIG_XDP_SOCKETS=y")
	default:
		r.unknown("", err)
	}
}

func evaluateJIT(f *facts.Facts, r *recorder) {
	switch value := f.Sysctls[facts.BPFJIT]; {
	case errors.Is(value.Err, os.ErrNotExist) && f.Sysctls[facts.Backlog].Err == nil:
		// Both are in net_core_table (net/core/sysctl_net_core.c), which only the initial network namespace has.
		r.warn("", "this kernel has no JIT: eBPF programs run in the interpreter", "boot a kernel with CONFIG_BPF_JIT=y")
	case errors.Is(value.Err, os.ErrNotExist):
		r.ok("", "readable in the initial network namespace only")
	case value.Err != nil:
		r.unknown("", value.Err)
	case value.Value == "0":
		r.warn("", "off: eBPF programs run in the interpreter", "", Change{Kind: Sysctl, Target: facts.BPFJIT, Before: "0", After: "1"})
	default:
		r.ok("", "on")
	}
}
