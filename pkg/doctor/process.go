// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
)

func processChecks() []Check {
	return []Check{
		check("tun-device", "/dev/net/tun, by opening it", judgeTUNDevice,
			"a tunnel is a TUN; a container may show the node and still forbid to open it"),
		check("capabilities", "this process's effective capabilities", judgeCapabilities,
			"CAP_NET_ADMIN makes the TUN, CAP_BPF and CAP_PERFMON load eBPF, CAP_NET_RAW opens AF_XDP sockets"),
		check("memlock", "how much memory may be locked", judgeMemlock,
			"the memory of AF_XDP sockets is charged to it, and before Linux 5.11 eBPF maps are"),
		check("bpffs", "the BPF file system", judgeBPFFS,
			"what `ropewalk spread` attaches is pinned there and outlives the command"),
	}
}

// denied tells the lack of a privilege from that of a feature.
func denied(err error) bool { return errors.Is(err, os.ErrPermission) }

func judgeTUNDevice(f *facts.Facts, r *recorder) {
	switch err := f.Kernel.TUNDevice; {
	case err == nil:
		r.ok("", "/dev/net/tun opens")
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		r.fail("", fmt.Sprintf("/dev/net/tun: %v", err), "modprobe tun\nin a container: pass the device in (--device /dev/net/tun)")
	case denied(err):
		r.fail("", fmt.Sprintf("/dev/net/tun: %v", err), "run it as root; in a container: allow the device c 10:200 rwm")
	default:
		r.fail("", fmt.Sprintf("/dev/net/tun: %v", err), "mknod /dev/net/tun c 10 200")
	}
}

// capability is a bit of include/uapi/linux/capability.h.
type capability struct {
	bit  int
	name string
}

func judgeCapabilities(f *facts.Facts, r *recorder) {
	have := f.Process.Capabilities
	if have.Err != nil {
		r.unknown("", have.Err)
		return
	}
	if lacking := lacks(have.Value, capability{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}); lacking != "" {
		r.fail("", "this process lacks "+lacking, "run it as root, or as a service with AmbientCapabilities=CAP_NET_ADMIN CAP_BPF CAP_PERFMON CAP_NET_RAW")
		return
	}
	lacking := lacks(have.Value, capability{unix.CAP_BPF, "CAP_BPF"}, capability{unix.CAP_PERFMON, "CAP_PERFMON"},
		capability{unix.CAP_NET_RAW, "CAP_NET_RAW"})
	if lacking != "" {
		r.warn("", "this process lacks "+lacking, "add them to the service's AmbientCapabilities, or to the container's capabilities")
		return
	}
	r.ok("", "CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON and CAP_NET_RAW")
}

// lacks names those that are not there. CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON (capabilities(7)).
func lacks(have uint64, want ...capability) string {
	var names []string
	for _, c := range want {
		standsIn := (c.bit == unix.CAP_BPF || c.bit == unix.CAP_PERFMON) && have>>unix.CAP_SYS_ADMIN&1 != 0
		if have>>c.bit&1 == 0 && !standsIn {
			names = append(names, c.name)
		}
	}
	return strings.Join(names, ", ")
}

// memlockWanted is room for 16 AF_XDP sockets of 4096 frames of 2 KiB, in bytes.
const memlockWanted = 16 * 4096 * 2048

func judgeMemlock(f *facts.Facts, r *recorder) {
	limit, have := f.Process.Memlock, f.Process.Capabilities
	switch {
	case limit.Err != nil:
		r.unknown("", limit.Err)
	case limit.Value == facts.NoLimit:
		r.ok("", "unlimited")
	case limit.Value >= memlockWanted:
		r.ok("", "%d MiB", limit.Value>>20)
	case have.Err == nil && have.Value>>unix.CAP_IPC_LOCK&1 != 0:
		r.ok("", "%d MiB, which CAP_IPC_LOCK goes beyond", limit.Value>>20)
	default:
		r.warn("", fmt.Sprintf("%d KiB", limit.Value>>10), "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service")
	}
}

func judgeBPFFS(f *facts.Facts, r *recorder) {
	switch fs := f.Process.BPFFS; {
	case fs.Err == nil:
		r.ok("", "mounted at %s", fs.Value)
	case errors.Is(fs.Err, os.ErrNotExist):
		r.warn("", "not mounted", "mount -t bpf -o mode=700 bpf /sys/fs/bpf")
	default:
		r.unknown("", fs.Err)
	}
}
