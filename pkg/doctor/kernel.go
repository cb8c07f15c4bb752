// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
)

func kernelChecks() []Check {
	return []Check{
		check("kernel-release", "the kernel's release", judgeRelease,
			"Linux 5.10 is the oldest kernel that ropewalk runs on; 7.0 to 7.1-rc4 lose the last datagram of a UDP train"),
		check("kernel-btf", "type information of the kernel", judgeBTF,
			"tools that trace the datapath (bpftrace, pwru) need it; ropewalk itself does without"),
		check("udp-gso", "UDP_SEGMENT, on a socket", judgeUDPGSO,
			"with it one system call sends a whole train of datagrams; without, one each"),
		check("udp-gro", "UDP_GRO, on a socket", judgeUDPGRO,
			"with it one system call receives a whole train of datagrams; without, one each"),
		check("udp-filter", "a filter against trains of handshake initiations, on a socket", judgeUDPFilter,
			"without it a flood of them takes the room of data in the sockets' buffers, unless AF_XDP is used"),
		check("tun-offloads", "TSO and USO, on a TUN that is made to try", judgeTUNOffloads,
			"with them applications hand over whole trains, of TCP (TSO) and of UDP such as QUIC (USO); without, single packets"),
		check("tun-steer", "the eBPF program that chooses TUN queues, by loading it", judgeSteer,
			"it keeps a flow in one lane both ways; without it flows follow their answers, and one lane may do the work of all"),
		check("tcx", "tcx links, by attaching to no device", judgeTCX,
			"`ropewalk spread` attaches its programs by them, beside those of others; clsact filters serve as well"),
		check("xdp-sockets", "AF_XDP, by opening a socket", judgeXDPSocket,
			"the AF_XDP underlay needs them; UDP sockets serve where there are none"),
		check("bpf-jit", "the eBPF compiler", judgeJIT,
			"interpreted programs cost several times as much per packet").fixable(),
	}
}

func judgeRelease(f *facts.Facts, r *recorder) {
	release := f.Kernel.Release
	var major, minor, rc int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		r.unknown("", fmt.Errorf("release %q: %w", release, err))
		return
	}
	if _, after, ok := strings.Cut(release, "-rc"); ok {
		_, _ = fmt.Sscanf(after, "%d", &rc)
	}
	switch {
	case major < 5 || major == 5 && minor < 10:
		r.fail("", "Linux "+release, "boot Linux 5.10 or later")
	case major == 7 && (minor == 0 || minor == 1 && rc > 0 && rc < 5):
		r.warn("", "Linux "+release+" may lose the last, shorter datagram of a train (torvalds b10b446, mended by 78effd8 and 5f17ae0)",
			"boot Linux 7.1 or later, or one that your distribution says has both commits")
	default:
		r.ok("", "Linux %s", release)
	}
}

func judgeBTF(f *facts.Facts, r *recorder) {
	switch b := f.Kernel.BTF; {
	case b.Err != nil:
		r.unknown("", b.Err)
	case !b.Value:
		r.warn("", "/sys/kernel/btf/vmlinux is not there", "boot a kernel with CONFIG_DEBUG_INFO_BTF=y")
	default:
		r.ok("", "/sys/kernel/btf/vmlinux")
	}
}

func judgeUDPGSO(f *facts.Facts, r *recorder) {
	probed(r, f.Kernel.UDP.Err, f.Kernel.UDP.Value.GSO, "UDP_SEGMENT", "boot Linux 4.18 or later")
}

func judgeUDPGRO(f *facts.Facts, r *recorder) {
	probed(r, f.Kernel.UDP.Err, f.Kernel.UDP.Value.GRO, "UDP_GRO", "boot Linux 5.12 or later: before, it is not fit for use")
}

func judgeUDPFilter(f *facts.Facts, r *recorder) {
	u := f.Kernel.UDP
	if u.Err == nil && !u.Value.GRO {
		r.ok("", "nothing to refuse: without UDP_GRO no trains arrive")
		return
	}
	probed(r, u.Err, u.Value.Filter, "SO_ATTACH_FILTER", "allow it where it is forbidden: a seccomp profile or a security module (see the daemon's log)")
}

func probed(r *recorder, err error, there bool, name, mend string) {
	switch {
	case err != nil:
		r.unknown("", err)
	case !there:
		r.warn("", name+" does not work", mend)
	default:
		r.ok("", "%s works", name)
	}
}

func judgeTUNOffloads(f *facts.Facts, r *recorder) {
	switch t := f.Kernel.TUN; {
	case t.Err != nil:
		r.unknown("", t.Err)
	case !t.Value.TSO:
		r.warn("", "neither TSO nor USO works", "boot a kernel whose tun module has offloads")
	case !t.Value.USO:
		r.warn("", "TSO works, USO does not", "boot Linux 6.2 or later")
	default:
		r.ok("", "TSO and USO work")
	}
}

func judgeSteer(f *facts.Facts, r *recorder) {
	switch err := f.Kernel.Steer; {
	case err == nil:
		r.ok("", "the program loads")
	case denied(err):
		r.unknown("", err)
	default:
		r.warn("", fmt.Sprintf("the program does not load: %v", err), "boot Linux 5.10 or later with CONFIG_BPF_SYSCALL=y")
	}
}

func judgeTCX(f *facts.Facts, r *recorder) {
	switch err := f.Kernel.TCX; {
	case err == nil:
		r.ok("", "tcx works")
	case errors.Is(err, errors.ErrUnsupported):
		r.ok("", "there is no tcx before Linux 6.6: clsact is used")
	default:
		r.unknown("", err)
	}
}

func judgeXDPSocket(f *facts.Facts, r *recorder) {
	switch err := f.Kernel.XDPSocket; {
	case err == nil:
		r.ok("", "AF_XDP sockets open")
	case errors.Is(err, errors.ErrUnsupported):
		r.warn("", "this kernel has no AF_XDP sockets", "boot a kernel with CONFIG_XDP_SOCKETS=y")
	default:
		r.unknown("", err)
	}
}

func judgeJIT(f *facts.Facts, r *recorder) {
	switch value := f.Sysctls[facts.BPFJIT]; {
	case errors.Is(value.Err, os.ErrNotExist):
		r.ok("", "it is set in the host's first network namespace, not in this one")
	case value.Err != nil:
		r.unknown("", value.Err)
	case value.Value == "0":
		r.warn("", "off: eBPF programs are interpreted", "", Change{Kind: Sysctl, Target: facts.BPFJIT, Before: "0", After: "1"})
	default:
		r.ok("", "on")
	}
}
