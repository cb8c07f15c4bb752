// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/thread"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// faultCase is a host that differs from a healthy one in one way.
type faultCase struct {
	check  string
	modify func(*facts.Facts)
	want   Status
	found  string // a substring of Finding.Found
	fix    string // a substring of Finding.Fix
}

func nic(how func(*facts.NIC)) func(*facts.Facts) {
	return func(f *facts.Facts) { how(&f.NICs[0]) }
}

func stats(how func(*facts.Stats)) func(*facts.Facts) {
	return func(f *facts.Facts) { how(&f.Tunnels[0].Stats.Value) }
}

func sysctl(key, value string) func(*facts.Facts) {
	return func(f *facts.Facts) { f.Sysctls[key] = facts.Known(value) }
}

func absent(key string) func(*facts.Facts) {
	return func(f *facts.Facts) { f.Sysctls[key] = facts.Unknown[string](fs.ErrNotExist) }
}

func both(a, b func(*facts.Facts)) func(*facts.Facts) {
	return func(f *facts.Facts) { a(f); b(f) }
}

func kernelCases() []faultCase {
	release := func(r string) func(*facts.Facts) { return func(f *facts.Facts) { f.Kernel.Release = r } }
	denied := fmt.Errorf("loading: %w", unix.EPERM)
	return []faultCase{
		{"kernel-release", release("5.9.1"), Failed, "5.9.1", "5.10"},
		{"kernel-release", release("4.19.0"), Failed, "4.19.0", "5.10"},
		{"kernel-release", release("5.10.0-46-amd64"), OK, "5.10", ""},
		{"kernel-release", release("7.0.3"), Warning, "trains of equal datagrams", "7.1"},
		{"kernel-release", release("7.1.0-rc4+"), Warning, "trains of equal datagrams", "7.1"},
		{"kernel-release", release("7.1.0-rc5"), OK, "7.1", ""},
		{"kernel-release", release("7.1.2"), OK, "7.1", ""},
		{"kernel-release", release("x"), Unknown, "", ""},
		{"kernel-btf", func(f *facts.Facts) { f.Kernel.BTF.Value = false }, Warning, "missing", "CONFIG_DEBUG_INFO_BTF"},
		{"udp-gso", func(f *facts.Facts) { f.Kernel.UDP.Value.GSO = false }, Warning, "UDP_SEGMENT", "seccomp"},
		{"udp-gro", func(f *facts.Facts) { f.Kernel.UDP.Value.GRO = false }, Warning, "UDP_GRO", "5.12"},
		{"udp-filter", func(f *facts.Facts) { f.Kernel.UDP.Value.Filter = false }, Warning, "SO_ATTACH_FILTER", "seccomp"},
		{"udp-filter", func(f *facts.Facts) { f.Kernel.UDP.Value = underlay.Features{} }, OK, "not needed", ""},
		{"tun-offloads", func(f *facts.Facts) { f.Kernel.TUN.Value.USO = false }, Warning, "USO does not", "6.2"},
		{"tun-offloads", func(f *facts.Facts) { f.Kernel.TUN = facts.Known(tun.Features{}) }, Warning, "neither", "tun module"},
		{"tun-steer", func(f *facts.Facts) { f.Kernel.Steer = unix.ENOSYS }, Warning, "does not load", "CONFIG_BPF_SYSCALL"},
		{"tun-steer", func(f *facts.Facts) { f.Kernel.Steer = denied }, Unknown, "not permitted", ""},
		{"tun-steer", func(f *facts.Facts) { f.Kernel.Steer = unix.EACCES }, Warning, "does not load", "boot Linux 5.10"},
		{"tun-steer", func(f *facts.Facts) {
			f.Kernel.Steer, f.Process.Capabilities.Value = unix.E2BIG, 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_BPF
		}, Warning, "does not load", "grant CAP_PERFMON"},
		{"tcx", func(f *facts.Facts) { f.Kernel.TCX = errors.ErrUnsupported }, OK, "clsact", ""},
		{"tcx", func(f *facts.Facts) { f.Kernel.TCX = denied }, Unknown, "not permitted", ""},
		{"xdp-sockets", func(f *facts.Facts) { f.Kernel.XDPSocket = errors.ErrUnsupported }, Warning, "no AF_XDP", "CONFIG_XDP_SOCKETS"},
		{"xdp-sockets", func(f *facts.Facts) { f.Kernel.XDPSocket = denied }, Unknown, "not permitted", ""},
		{"bpf-jit", sysctl(facts.BPFJIT, "0"), Warning, "interpreter", "sysctl -w net.core.bpf_jit_enable=1"},
		{"bpf-jit", absent(facts.BPFJIT), Warning, "no JIT", "CONFIG_BPF_JIT"},
		{"bpf-jit", both(absent(facts.BPFJIT), absent(facts.Backlog)), OK, "initial network namespace", ""},
	}
}

func processCases() []faultCase {
	can := func(bits ...int) func(*facts.Facts) {
		return func(f *facts.Facts) {
			f.Process.Capabilities.Value = 0
			for _, bit := range bits {
				f.Process.Capabilities.Value |= 1 << bit
			}
		}
	}
	locked := func(n uint64) func(*facts.Facts) { return func(f *facts.Facts) { f.Process.Memlock.Value = n } }
	none := can()
	noFS := func(f *facts.Facts) { f.Process.BPFFS = facts.Unknown[string](fs.ErrNotExist) }
	pod := func(f *facts.Facts) { f.Process.AgentPod = true }
	engine := func(f *facts.Facts) { f.Process.EnginePod = true }
	return []faultCase{
		{"tun-device", func(f *facts.Facts) { f.Kernel.TUNDevice = unix.ENOENT }, Failed, "no such file", "modprobe tun"},
		{"tun-device", func(f *facts.Facts) { f.Kernel.TUNDevice = unix.EPERM }, Failed, "not permitted", "c 10:200"},
		{"tun-device", func(f *facts.Facts) { f.Kernel.TUNDevice = unix.ENOTTY }, Failed, "inappropriate", "mknod"},
		{"capabilities", none, Failed, "lacks CAP_NET_ADMIN", "root"},
		{"capabilities", can(unix.CAP_NET_ADMIN), Warning, "lacks CAP_BPF, CAP_PERFMON, CAP_NET_RAW", "AmbientCapabilities"},
		{"capabilities", can(unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_NET_RAW), OK, "", ""},
		{"memlock", both(none, locked(64<<10)), Warning, "64 KiB", "LimitMEMLOCK"},
		{"memlock", both(can(unix.CAP_IPC_LOCK), locked(64<<10)), OK, "CAP_IPC_LOCK", ""},
		{"memlock", both(none, locked(1<<30)), OK, "1024 MiB", ""},
		{"bpffs", noFS, Warning, "not mounted", "mount -t bpf"},
		{"tun-device", both(pod, func(f *facts.Facts) { f.Kernel.TUNDevice = unix.ENOENT }), OK, "ropewalk-engine", ""},
		{"tun-device", both(engine, func(f *facts.Facts) { f.Kernel.TUNDevice = unix.ENOENT }), Failed, "no such file", "modprobe tun"},
		{"capabilities", both(both(pod, noFS), can(unix.CAP_NET_ADMIN)), OK, "in mode mesh", ""},
		{"capabilities", both(pod, can(unix.CAP_NET_ADMIN)), Warning, "lacks CAP_BPF, CAP_PERFMON", "to capabilities of the chart"},
		{"capabilities", both(pod, can(unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON)), OK, "in mode spread", ""},
		{"capabilities", both(both(engine, noFS), can(unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_NET_RAW, unix.CAP_SYS_NICE)), OK, "ropewalk-engine", ""},
		{"capabilities", both(both(engine, noFS), can(unix.CAP_NET_ADMIN, unix.CAP_BPF)), Warning, "lacks CAP_NET_RAW, CAP_SYS_NICE", "to engine.capabilities of the chart"},
		{"memlock", both(both(engine, none), locked(64<<10)), OK, "no AF_XDP", ""},
		{"bpffs", both(engine, noFS), OK, "mode mesh", ""},
		{"memlock", both(both(pod, none), locked(64<<10)), OK, "no AF_XDP", ""},
		{"bpffs", both(pod, noFS), OK, "mode mesh", ""},
	}
}

func nicCases() []faultCase {
	unsupported := fmt.Errorf("asking: %w", unix.EOPNOTSUPP)
	noRSS := facts.Unknown[hostnet.RSS](hostnet.ErrNoRSS)
	one := func(n *facts.NIC) { n.Channels = facts.Known(hostnet.Channels{Combined: 1, MaxCombined: 1}) }
	measured := func(times float64) measurement.Result {
		c := measurement.Comparison{UDP: measurement.Cost{Gbps: 1, NsPerPacket: 1}, XDP: measurement.Cost{Gbps: times, NsPerPacket: 1}}
		return measurement.Result{Device: "eth0", Datagrams: c, Trains: c}
	}
	return []faultCase{
		{"nic-driver", nic(func(n *facts.NIC) { n.XDPDriver.Value.ZeroCopy = false }), OK, "copy mode", ""},
		{"nic-driver", nic(func(n *facts.NIC) { n.XDPDriver.Value = xsk.Capabilities{} }), Warning, "no native XDP", "UDP sockets"},
		{"nic-driver", nic(func(n *facts.NIC) { n.XDPDriver.Value, n.Virtual = xsk.Capabilities{}, true }), OK, "virtual", ""},
		{"nic-driver", nic(func(n *facts.NIC) { n.XDPDriver.Err = errors.ErrUnsupported }), OK, "6.3", ""},
		{"nic-driver", func(f *facts.Facts) { f.NICs = nil }, OK, "--device", ""},
		{"nic-underlay", func(*facts.Facts) {}, OK, "to measure it: ropewalk bench underlay eth0 --to HOST", ""},
		{"nic-underlay", nic(func(n *facts.NIC) { n.XDPDriver.Value.ZeroCopy = false }), OK, "would copy each packet", ""},
		{
			"nic-underlay", nic(func(n *facts.NIC) {
				n.Measured.Err = fmt.Errorf("%w on eth0: firmware 1 is now 2", measurement.ErrStale)
			}), Warning,
			"firmware 1 is now 2", "ropewalk bench underlay eth0",
		},
		{"nic-underlay", nic(func(n *facts.NIC) { n.Measured = facts.Known(measured(1.2)) }), OK, "auto uses AF_XDP: measured on eth0", ""},
		{"nic-underlay", nic(func(n *facts.NIC) { n.Measured = facts.Known(measured(0.9)) }), OK, "auto uses UDP sockets: measured on eth0", ""},
		{"nic-underlay", nic(func(n *facts.NIC) { n.Measured, n.NoXDP = facts.Known(measured(1.2)), "eth0 is a bond" }), OK, "auto uses UDP sockets: eth0 is a bond", ""},
		{"nic-underlay", nic(func(n *facts.NIC) { n.Measured, n.Above = facts.Known(measured(1.2)), "eth0.7" }), OK, "auto uses UDP sockets: packets leave by eth0.7", ""},
		{"nic-xdp", nic(func(n *facts.NIC) { n.XDP = facts.Known(facts.XDP{Attached: true, ID: 9, Name: "xdp_lb"}) }), Warning, `foreign program 9 "xdp_lb"`, "bpftool prog show id 9"},
		{"nic-xdp", nic(func(n *facts.NIC) { n.XDP = facts.Known(facts.XDP{Attached: true, Generic: true, Name: "classify"}) }), OK, "generic", ""},
		{"nic-channels", nic(func(n *facts.NIC) { n.Channels.Value.Combined = 2 }), Warning, "2 of 16 receive queues", "ethtool -L eth0 combined 4"},
		{"nic-channels", nic(func(n *facts.NIC) { n.Channels = facts.Known(hostnet.Channels{RX: 1, MaxRX: 3}) }), Warning, "1 of 3 receive queues", "ethtool -L eth0 rx 3"},
		{"nic-channels", nic(one), Warning, "1 receive queue", "nic-rps"},
		{"nic-channels", nic(func(n *facts.NIC) { n.Channels = facts.Known(hostnet.Channels{Combined: 2, MaxCombined: 2}) }), OK, "(the maximum)", ""},
		{"nic-channels", nic(func(n *facts.NIC) { n.Virtual = true }), OK, "virtual", ""},
		{"nic-rings", nic(func(n *facts.NIC) { n.Rings.Value.RX = 256 }), Warning, "256 packets (maximum 8192)", "ethtool -G eth0 rx 512"},
		{"nic-rings", nic(func(n *facts.NIC) { n.Rings = facts.Known(hostnet.Rings{RX: 256, MaxRX: 256}) }), OK, "256", ""},
		{"nic-rings", nic(func(n *facts.NIC) { n.Rings.Err = unsupported }), OK, "not supported", ""},
		{"nic-coalescing", nic(func(n *facts.NIC) { n.Coalescing.Value = hostnet.Coalescing{RX: time.Millisecond} }), Warning, "1ms", "ethtool -C eth0 rx-usecs 50"},
		{"nic-coalescing", nic(func(n *facts.NIC) { n.Coalescing.Value = hostnet.Coalescing{RX: 8 * time.Microsecond} }), OK, "8µs", ""},
		{"nic-rss", nic(func(n *facts.NIC) { n.RSS.Value.Indirection = spread.EqualIndirection(2) }), Warning, "2 of 4 queues", "ethtool -X eth0 equal 4"},
		{"nic-rss", nic(func(n *facts.NIC) { n.RSS.Value.Function = spread.OtherFunction }), Warning, "not Toeplitz", "hfunc toeplitz"},
		{"nic-driver", nic(func(n *facts.NIC) { n.Driver.Value = "ena" }), OK, "for each 5-tuple", ""},
		{"nic-rss", nic(func(n *facts.NIC) { n.RSS.Value.Driver, n.RSS.Value.Function = "ena", spread.OtherFunction }), OK, "without a port plan", ""},
		{"nic-rss", nic(func(n *facts.NIC) { n.RSS.Value.Transform = spread.OtherTransform }), Warning, "transforms", "ethtool -X eth0 xfrm none"},
		{"nic-rss", nic(func(n *facts.NIC) { n.RSS = noRSS }), Warning, "does not report", "none"},
		{"nic-rss", both(nic(one), nic(func(n *facts.NIC) { n.RSS = noRSS })), OK, "no RSS", ""},
		{"nic-udp-hash", nic(func(n *facts.NIC) { n.RSS.Value.UDP4 = spread.AddressesOnly }), Failed, "spread has no effect", "ethtool -N eth0 rx-flow-hash udp4 sdfn"},
		{"nic-udp-hash", nic(func(n *facts.NIC) { n.RSS.Value.UDP6 = spread.OtherFields }), Warning, "udp6", "ethtool -N eth0 rx-flow-hash udp6 sdfn"},
		{"nic-udp-hash", both(nic(one), nic(func(n *facts.NIC) { n.RSS.Value.UDP4 = spread.AddressesOnly })), OK, "one receive queue", ""},
		{"nic-udp-hash", nic(func(n *facts.NIC) { n.RSS = noRSS }), OK, "does not report", ""},
		{"nic-udp-hash", nic(func(n *facts.NIC) { n.RSS.Value.Driver = hostnet.NetvscDriver }), Warning, "Hyper-V", "accelerated networking"},
		{"nic-gro", sysctl(facts.Forward4, "1"), Warning, "rx-udp-gro-forwarding off", "ethtool -K eth0 rx-udp-gro-forwarding on"},
		{"nic-gro", nic(func(n *facts.NIC) { n.Features.Value[featureList] = hostnet.Feature{On: true} }), Warning, "rx-gro-list on", "ethtool -K eth0 rx-gro-list off"},
		{"nic-gro", nic(func(n *facts.NIC) { n.Features.Value[featureList] = hostnet.Feature{On: true, Fixed: true} }), OK, "rx-gro-list on", ""},
		{"nic-gro", nic(func(n *facts.NIC) { n.Features.Value[featureGRO] = hostnet.Feature{} }), Warning, "rx-gro off", "ethtool -K eth0 rx-gro on"},
		{"nic-gro", nic(func(n *facts.NIC) { n.Features.Value[featureGRO], n.Virtual = hostnet.Feature{}, true }), OK, "rx-gro off", ""},
		{"nic-mtu", nic(func(n *facts.NIC) { n.MTU = 1359 }), Warning, "1359", "mtu 1500"},
		{"nic-mtu", nic(func(n *facts.NIC) { n.MTU = 1360 }), OK, "1360", ""},
		{"nic-numa", func(f *facts.Facts) { f.CPU.Nodes.Value = []int{0, 1} }, Warning, "NUMA node 0 of 2", "numactl --cpunodebind=0"},
		{"nic-numa", both(nic(func(n *facts.NIC) { n.Node = -1 }), func(f *facts.Facts) { f.CPU.Nodes.Value = []int{0, 1} }), OK, "no NUMA node", ""},
	}
}

func queueCases() []faultCase {
	oneQueue := nic(func(n *facts.NIC) {
		n.Channels = facts.Known(hostnet.Channels{Combined: 1, MaxCombined: 1})
		n.RPS = facts.Known(map[string][]int{"rx-0": nil})
	})
	return []faultCase{
		{"nic-irq-affinity", nic(func(n *facts.NIC) {
			for i := range n.IRQs.Value {
				n.IRQs.Value[i].CPUs = []int{i % 2}
			}
		}), Warning, "4 queues go to 2 of 4", "for irq in 40 41 42 43; do"},
		{"nic-irq-affinity", nic(func(n *facts.NIC) { n.IRQs.Value = n.IRQs.Value[:1] }), OK, "fewer than two", ""},
		{"nic-irq-affinity", nic(func(n *facts.NIC) { n.Virtual = true }), OK, "virtual", ""},
		{"irqbalance", func(f *facts.Facts) { f.Irqbalance.Value = true }, Warning, "running", "systemctl disable --now irqbalance"},
		{"irqbalance", func(f *facts.Facts) { f.Irqbalance.Value, f.NICs = true, nil }, OK, "no device", ""},
		{"nic-rps", nic(func(n *facts.NIC) { n.RPS.Value["rx-1"] = []int{0, 3} }), Warning, "rx-1 of 4", "echo 0 > /sys/class/net/eth0/queues/rx-1/rps_cpus"},
		{"nic-rps", oneQueue, Warning, "1 of 4", "echo f > /sys/class/net/eth0/queues/rx-0/rps_cpus"},
		{"nic-rps", both(oneQueue, nic(func(n *facts.NIC) { n.RPS.Value["rx-0"] = []int{0, 1, 2, 3} })), OK, "on for rx-0", ""},
		{"nic-xps", nic(func(n *facts.NIC) {
			n.XPS = facts.Known(map[string][]int{"tx-0": nil, "tx-1": nil, "tx-2": nil, "tx-3": nil})
		}), Warning, "off, with 4", "echo 8 > /sys/class/net/eth0/queues/tx-3/xps_cpus"},
		{"nic-xps", nic(func(n *facts.NIC) { n.XPS = facts.Known(map[string][]int{"tx-0": nil}) }), OK, "fewer than two transmit queues", ""},
	}
}

func cpuCases() []faultCase {
	idle := func(us int, allowed time.Duration) func(*facts.Facts) {
		return func(f *facts.Facts) {
			f.CPU.Idle.Value = append(f.CPU.Idle.Value, facts.IdleState{Name: "C6", Latency: time.Duration(us) * time.Microsecond})
			f.CPU.Latency.Value = allowed
		}
	}
	return []faultCase{
		{"cpu-count", func(f *facts.Facts) { f.CPU.Online.Value = []int{0} }, Warning, "1 CPU", "add CPUs"},
		{"cpu-count", func(f *facts.Facts) { f.CPU.SMT.Value = false }, OK, "4 CPUs", ""},
		{"cpu-group", func(*facts.Facts) {}, OK, "cgroup /system.slice/ropewalk@wg0.service with CPU weight 100 (process 4711)", ""},
		{"cpu-group", func(f *facts.Facts) {
			f.CPU.Group, f.CPU.Daemon = facts.Known(thread.Group{Autogroup: "autogroup-3"}), 0
		}, OK, "autogroup-3 with nice 0 (this process, no daemon runs)", ""},
		{"cpu-group", func(f *facts.Facts) { f.CPU.Group.Value.Weight = 20 }, Warning, "weight 20 (process 4711), less than 100", "CPUWeight=100"},
		{"cpu-group", func(f *facts.Facts) { f.CPU.Group.Value.Weight, f.Process.EnginePod = 20, true }, OK, "weight 20", ""},
		{"cpu-group", func(f *facts.Facts) {
			f.CPU.Group = facts.Known(thread.Group{Autogroup: "autogroup-3", AutogroupNice: 5})
		}, Warning, "nice 5 (process 4711)", "echo 0 > /proc/4711/autogroup"},
		{"cpu-cipher", func(f *facts.Facts) { f.Cipher = "generic" }, Warning, "one packet at a time", "AVX2 and BMI2"},
		{"cpu-cipher", func(f *facts.Facts) {
			f.CipherChoices = []chachapoly.Choice{
				{Operation: "seal", Messages: 1, Bytes: 1440, Took: 720, Generic: 720},
				{Operation: "seal", Messages: 16, Bytes: 1440, Took: 5760, Generic: 11520},
				{Operation: "open", Messages: 16, Bytes: 1440, Took: 11520, Generic: 11520},
			}
		}, OK, "avx512, seal 4.0 GB/s (2.0 × x/crypto), open 2.0 GB/s (1.0 × x/crypto)", ""},
		{"cpu-cipher", func(f *facts.Facts) {
			f.Cipher = "generic"
			f.CipherChoices = []chachapoly.Choice{{Operation: "seal", Messages: 16, Bytes: 1440, Implementation: "generic", Took: 5760, Generic: 5760}}
		}, OK, "generic, seal 4.0 GB/s (1.0 × x/crypto)", ""},
		{"cpu-cipher", func(f *facts.Facts) { f.CipherFailed = []string{"avx2"} }, Warning, "avx512, without avx2: self-test failed", "another CPU"},
		{"cpu-governor", func(f *facts.Facts) { f.CPU.Governors.Value[2] = "powersave" }, Warning, "powersave on 1 of 4", "echo performance > /sys/devices/system/cpu/cpu2/cpufreq/scaling_governor"},
		{"cpu-governor", func(f *facts.Facts) { f.CPU.Governors.Value = nil }, OK, "virtual machine", ""},
		{"cpu-governor", func(f *facts.Facts) { f.CPU.Online, f.CPU.Governors.Value = facts.Unknown[[]int](errHidden), nil }, Unknown, "", ""},
		{"cpu-idle", idle(100, time.Hour), OK, "C6, exit latency 100µs", ""},
		{"cpu-idle", idle(133, time.Hour), Warning, "C6, exit latency 133µs", "cpupower idle-set -D 101"},
		{"cpu-idle", idle(133, 10*time.Microsecond), OK, "C1, exit latency 2µs, limited by /dev/cpu_dma_latency to 10µs", ""},
		{"cpu-idle", func(f *facts.Facts) { f.CPU.Idle.Value = nil }, OK, "no idle state", ""},
		{"clock", func(f *facts.Facts) { f.Clock.Now = time.Unix(0, 0) }, Failed, "1970", "timedatectl"},
		{"clock", func(f *facts.Facts) { f.Clock.Synchronised.Value = false }, Warning, "not synchronised", "timedatectl"},
		{"clock-source", func(f *facts.Facts) { f.Clock.Source.Value = "hpet" }, Warning, "hpet", "tsc"},
	}
}

func hostCases() []faultCase {
	forwarding := both(sysctl(facts.Forward4, "1"), sysctl(facts.Forward6, "1"))
	bigTCP := func(device string) func(*facts.Facts) {
		return func(f *facts.Facts) {
			f.BigTCP.Value = []hostnet.BigTCP{{Device: device, Limits: map[string]int{"gso_max_size": 131072, "gro_max_size": 196608}}}
		}
	}
	noCaps := func(f *facts.Facts) { f.Process.Capabilities.Value = 0 }
	vlan := func(f *facts.Facts) { f.Underlay = []string{"eth0.5"} } // above eth0
	bond := func(f *facts.Facts) { f.Underlay, f.NICs = []string{"bond0"}, append(f.NICs, f.NICs[0]) }
	strict := both(sysctl(facts.RPFilter("eth0"), "1"), func(f *facts.Facts) { f.Tunnels[0].Mark = 51820 })
	return []faultCase{
		{"socket-buffers", both(noCaps, sysctl(facts.RmemMax, "212992")), Warning, "212992", "net.core.rmem_max=16777216"},
		{"socket-buffers", sysctl(facts.RmemMax, "212992"), OK, "no limit (CAP_NET_ADMIN)", ""},
		{"socket-buffers", sysctl(facts.RmemMax, "many"), Unknown, `"many"`, ""},
		{"backlog", sysctl(facts.Backlog, "300"), Warning, "300", "sysctl -w net.core.netdev_max_backlog=1000"},
		{"backlog", both(sysctl(facts.Backlog, "1000"), nic(func(n *facts.NIC) { n.RPS.Value["rx-0"] = []int{1} })), Warning, "1000", "=3000"},
		{"backlog", absent(facts.Backlog), OK, "initial network namespace", ""},
		{"ip-forward", sysctl(facts.Forward4, "1"), Warning, "IPv6 forwarding off", "forwarding=1"},
		{"ip-forward", both(sysctl(facts.Forward4, "1"), sysctl(facts.Forward6, "1")), OK, "on", ""},
		{"forward-trains", both(forwarding, bigTCP("eth1")), Warning, "gro_max_size 196608, gso_max_size 131072", "ip link set dev eth1 gro_max_size 65536 gso_max_size 65536"},
		{"forward-trains", both(forwarding, bigTCP("wg0")), OK, "no device", ""},
		{"forward-trains", bigTCP("eth1"), OK, "forwarding is off", ""},
		{"rp-filter", sysctl(facts.RPFilter("wg0"), "1"), Warning, "strict on wg0", "sysctl -w net.ipv4.conf.wg0.rp_filter=2"},
		{"rp-filter", both(sysctl(facts.RPFilterAll(), "2"), sysctl(facts.RPFilter("wg0"), "1")), OK, "no relevant device", ""},
		{"rp-filter", both(func(f *facts.Facts) { f.Underlay = []string{"eth0", "eth1"} }, sysctl(facts.RPFilter("eth1"), "1")), Warning, "strict on eth1", "eth1.rp_filter=2"},
		{"rp-filter", both(bond, sysctl(facts.RPFilter("eth0"), "1")), OK, "no relevant device", ""},
		{"src-valid-mark", both(strict, vlan), OK, "no rp_filter", ""},
		{"src-valid-mark", both(both(strict, vlan), sysctl(facts.RPFilter("eth0.5"), "1")), Failed, "strict on eth0.5: packets from peers of wg0", "sysctl -w net.ipv4.conf.all.src_valid_mark=1"},
		{"src-valid-mark", strict, Failed, "strict on eth0: packets from peers of wg0", "sysctl -w net.ipv4.conf.all.src_valid_mark=1"},
		{"src-valid-mark", both(strict, sysctl(facts.SrcValidMark, "1")), OK, "on", ""},
		{"src-valid-mark", both(strict, sysctl(facts.RPFilter("eth0"), "2")), OK, "no rp_filter", ""},
		{"conntrack", sysctl(facts.ConntrackCount, "800"), Warning, "800 of 1000", "nf_conntrack_max=2000"},
		{"conntrack", sysctl(facts.ConntrackCount, "960"), Failed, "960 of 1000", "udp dport 51820 fib daddr type local notrack"},
		{"conntrack", absent(facts.ConntrackCount), OK, "not loaded", ""},
		{"spread-ports", func(f *facts.Facts) {
			f.LocalPorts.Value.Range = spread.Ports{First: 1024, Last: 65535}
			f.LocalPorts.Value.Reserved = []spread.Ports{{First: 8080, Last: 8080}}
			f.Sysctls[facts.ReservedPorts] = facts.Known("8080")
		}, Warning, "61000-61999", "ip_local_reserved_ports=8080"},
		{"spread-ports", func(f *facts.Facts) {
			f.LocalPorts.Value.Range, f.Tunnels[0].Stats.Value.Spread.Mode = spread.Ports{First: 1024, Last: 65535}, config.SpreadOff
		}, OK, "spread is off", ""},
		{"nic-driver", func(*facts.Facts) {}, OK, "25 Gbit/s", ""},
		{"mtu", func(f *facts.Facts) { f.Tunnels[0].Peers[0].PathMTU.Value = 1400 }, Warning, "at most 1340 fits", "ip link set dev wg0 mtu 1340"},
		{"mtu", func(f *facts.Facts) {
			f.Tunnels[0].MTU, f.Tunnels[0].Peers[0].Endpoint = 1421, config.Endpoint{AddrPort: netip.MustParseAddrPort("[2001:db8::1]:51820")}
		}, Warning, "at most 1420 fits", "mtu 1420"},
		{"mtu", func(f *facts.Facts) { f.Tunnels[0].Peers[0].PathMTU.Err = errHidden }, OK, "no peer's path MTU", ""},
	}
}

func portCases() []faultCase {
	other := facts.Socket{Addr: netip.MustParseAddrPort("127.0.0.1:51820"), Inode: 9, PID: 77, Process: "unbound"}
	join := func(s facts.Socket) func(*facts.Facts) {
		return func(f *facts.Facts) { f.Sockets.Value = append(f.Sockets.Value, s) }
	}
	kernelOwn := facts.Socket{Addr: netip.MustParseAddrPort("0.0.0.0:51820")}
	inKernel := func(f *facts.Facts) {
		f.Tunnels[0].Kind, f.Sockets.Value = facts.InKernel, []facts.Socket{kernelOwn, kernelOwn}
	}
	pre := func(f *facts.Facts) { f.Pre, f.Tunnels = true, nil }
	second := func(device, allowed string) func(*facts.Facts) { // through which messages of wg0 leave
		return func(f *facts.Facts) {
			f.Tunnels[0].Peers[0].Device = "wg1"
			f.Tunnels = append(f.Tunnels, facts.Tunnel{Name: "wg1", Kind: facts.InKernel, Peers: []facts.Peer{{
				Endpoint: config.Endpoint{AddrPort: netip.MustParseAddrPort("198.51.100.7:51820")}, AllowedIPs: []netip.Prefix{netip.MustParsePrefix(allowed)}, Device: device,
			}}})
		}
	}
	unnamed := func(f *facts.Facts) { f.Tunnels, f.OtherTunnels = f.Tunnels[:1], f.Tunnels[1:] } // `ropewalk doctor wg0`
	return []faultCase{
		{"port", join(other), Failed, "in use by unbound (77)", "sport = :51820"},
		{"port", join(kernelOwn), Failed, "the kernel", "ss -ulpn"},
		{"port", inKernel, OK, "no other socket", ""},
		{"port", both(inKernel, join(other)), Failed, "unbound", "ss"},
		{"port", pre, Failed, "in use by ropewalk (42)", "ss"},
		{"port", both(pre, func(f *facts.Facts) { f.Port = 51821 }), OK, "51821 is used by no other", ""},
		{"port", both(pre, func(f *facts.Facts) { f.Sockets.Value[0].PID = 0 }), Failed, "unknown process", "ss"},
		{"port", func(f *facts.Facts) {
			f.Tunnels = append(f.Tunnels, facts.Tunnel{Name: "wg1", Kind: facts.InKernel, Port: 51820})
		}, Failed, "tunnel wg1", "ss"},
		{"port", func(f *facts.Facts) { f.Tunnels[0].Port = 0 }, OK, "no listen port", ""},
		{"loop", func(f *facts.Facts) { f.Tunnels[0].Peers[0].Device = "wg0" }, Failed, "192.0.2.7 are routed into the tunnel itself (wg0 → wg0)", "ip route add 192.0.2.7"},
		{"loop", second("wg0", "192.0.2.0/24"), Failed, "(wg0 → wg1 → wg0)", "ip route add 192.0.2.7"},
		{"loop", second("eth0", "192.0.2.0/24"), OK, "no message", ""},
		{"loop", second("wg0", "198.51.100.0/24"), OK, "no message", ""},
		{"loop", both(second("wg0", "192.0.2.0/24"), unnamed), Failed, "(wg0 → wg1 → wg0)", "ip route add 192.0.2.7"},
		{"loop", second("wg1", "192.0.2.0/24"), Failed, "198.51.100.7", "ip route add 198.51.100.7"},
		{"default-route", half(true), Warning, "packets to 0.0.0.0/0 leave by u0, on the route to 128.0.0.0/1", "ip route show table all 128.0.0.0/1"},
		{"default-route", half(false), Failed, "packets to 0.0.0.0/0 leave by u0, on the route to 128.0.0.0/1", "ip route show table all 128.0.0.0/1"},
		{"tunnel-settings", saved("wg0.conf", "route 10.0.0.0/8 is missing in table 254"), Failed, "route 10.0.0.0/8 is missing", "ropewalk reload wg0.conf"},
		{"tunnel-settings", saved("wg0.conf"), OK, "as `ropewalk up`", ""},
		{"tunnel-settings", func(f *facts.Facts) { f.Tunnels[0].Saved.Err = errHidden }, Unknown, "hidden", ""},
		{"tunnel", both(saved("wg0.conf", "it is down"), func(f *facts.Facts) { f.Tunnels[0].Stats.Value.Up = false }), Warning, "down", "ropewalk reload wg0.conf"},
		{"default-route", func(f *facts.Facts) { f.Tunnels[0].Replaced.Err = errHidden }, Unknown, "hidden", ""},
	}
}

// saved is the saved state of a tunnel that lacks something.
func saved(file string, missing ...string) func(*facts.Facts) {
	return func(f *facts.Facts) { f.Tunnels[0].Saved = facts.Known(facts.Saved{File: file, Missing: missing}) }
}

// half is a route that replaces a half of the tunnel's default route.
func half(tunnel bool) func(*facts.Facts) {
	path := hostnet.OtherPath{
		Prefix: netip.MustParsePrefix("0.0.0.0/0"), Part: netip.MustParsePrefix("128.0.0.0/1"), Match: hostnet.Match{Dst: netip.MustParsePrefix("128.0.0.0/1")}, Link: hostnet.Link{Name: "u0", Tunnel: tunnel},
	}
	return func(f *facts.Facts) { f.Tunnels[0].Replaced = facts.Known([]hostnet.OtherPath{path}) }
}

func pluginCases() []faultCase {
	plugin := func(how func(*facts.Plugin)) func(*facts.Facts) {
		return func(f *facts.Facts) {
			p := facts.Plugin{Product: "Cilium", Device: "cilium_wg0", Port: facts.Known(uint16(51871)), Lower: []string{"eth0"}}
			how(&p)
			f.Plugins.Value = append(f.Plugins.Value, p)
		}
	}
	as := func(*facts.Plugin) {}
	oneQueue := nic(func(n *facts.NIC) { n.Channels = facts.Known(hostnet.Channels{Combined: 1, MaxCombined: 1}) })
	kernelOwn := func(f *facts.Facts) {
		f.Pre, f.Port, f.Tunnels = true, 51871, nil
		f.Sockets = facts.Known([]facts.Socket{{Addr: netip.MustParseAddrPort("0.0.0.0:51871")}})
	}
	return []faultCase{
		{"cni", plugin(as), Warning, "Cilium's WireGuard, port 51871, not spread on eth0", "ropewalk spread attach eth0 --port 51871 --watch\n# on each node"},
		{"cni", plugin(func(p *facts.Plugin) { p.Spread = facts.Known([]string{"eth0"}) }), OK, "spread on eth0", ""},
		{"cni", plugin(func(p *facts.Plugin) { p.Lower, p.Spread = []string{"eth0", "eth1"}, facts.Known([]string{"eth0"}) }), Warning, "not spread on eth1:", "attach eth1"},
		{
			"cni", plugin(func(p *facts.Plugin) { p.Lower = []string{"eth0", "eth1"} }), Warning, "not spread on eth0, eth1:",
			"ropewalk spread attach eth0 --port 51871 --watch &\nropewalk spread attach eth1 --port 51871 --watch\n# on each node",
		},
		{"cni", plugin(func(p *facts.Plugin) { p.Lower = nil }), OK, "no device found on the routes", ""},
		{"cni", plugin(func(p *facts.Plugin) { p.Port.Err = unix.EPERM }), Unknown, "not permitted", ""},
		{"cni", plugin(func(p *facts.Plugin) { p.Spread.Err = unix.EPERM }), Unknown, "not permitted", ""},
		{"cni", func(f *facts.Facts) { f.Plugins.Err = unix.EPERM }, Unknown, "not permitted", ""},
		{"cni", both(oneQueue, plugin(as)), OK, "only one receive queue", ""},
		{"port", both(kernelOwn, plugin(as)), Failed, "in use by Cilium's cilium_wg0", "choose another"},
	}
}

func tunnelCases() []faultCase {
	stall := func(fixed string, threaded bool) func(*facts.Facts) {
		return func(f *facts.Facts) {
			f.Kernel.StallFixed = fixed
			f.Tunnels[0] = facts.Tunnel{Name: "wg0", Kind: facts.InKernel, Threaded: threaded}
		}
	}
	nodes := func(devices ...string) func(*facts.Facts) {
		return func(f *facts.Facts) {
			t := &f.Tunnels[0]
			for i, device := range devices {
				t.Mark, t.Nodes = facts.NodeTrafficMark, append(t.Nodes, facts.Node{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), Device: device})
			}
		}
	}
	kind := func(k facts.Kind) func(*facts.Facts) { return func(f *facts.Facts) { f.Tunnels[0].Kind = k } }
	dead := func(f *facts.Facts) {
		f.Tunnels[0] = facts.Tunnel{Name: "wg0", Kind: facts.Userspace, Stats: facts.Unknown[facts.Stats](errHidden)}
	}
	return []faultCase{
		{"tunnel", func(f *facts.Facts) { f.Tunnels = nil }, OK, "no tunnel", ""},
		{"kernel-stall", stall("", false), OK, "none of the affected releases", ""},
		{"kernel-stall", stall("6.6.127", false), Warning, "CVE-2026-52945", "6.6.127"},
		{"kernel-stall", stall("6.6.127", true), Warning, "threaded", "echo 0 >/sys/class/net/wg0/threaded"},
		{"node-encryption", nodes(), OK, "no tunnel of a Kubernetes node", ""},
		{"node-encryption", nodes("wg0", "wg0"), OK, "to all 2 peer nodes", ""},
		{"node-encryption", nodes("wg0", ""), Unknown, "no route to 1 of 2 peer nodes: 192.0.2.2", ""},
		{"node-encryption", nodes("wg0", "eth0"), Warning, "to 1 of 2 peer nodes is not encrypted: 192.0.2.2", "ropewalk mesh status"},
		{"node-encryption", nodes("eth0", "eth0", "eth0", "eth0", "eth0", "eth0", "eth0"), Warning, "192.0.2.5 and 2 more", "ropewalk mesh status"},
		{"tunnel", kind(facts.InKernel), OK, "kernel's WireGuard", ""},
		{"tunnel", func(f *facts.Facts) { f.Tunnels[0].Stats.Err = unix.EACCES }, Unknown, "permission denied", ""},
		{"tunnel", kind(facts.Userspace), Warning, "another program", "ropewalk run wg0"},
		{"tunnel", stats(func(s *facts.Stats) { s.Up = false }), Warning, "down", "ip link set dev wg0 up"},
		{"tunnel", dead, Failed, "does not answer", "ropewalk down wg0"},
	}
}

// probed gives the tunnel a peer with that path MTU.
func probed(p config.PathMTU) func(*facts.Facts) {
	return stats(func(s *facts.Stats) { s.PathMTU = config.PathMTUReport{"k1": p} })
}

// failing gives the tunnel a single peer that does not answer.
func failing(h config.PeerHandshake) func(*facts.Facts) {
	return stats(func(s *facts.Stats) {
		s.Spread.Peers = map[string]config.PeerSpread{"AAAA": {Reason: "there is no session yet"}}
		s.FailingHandshakes = config.HandshakeReport{"AAAA": h}
	})
}

// quantum gives the tunnel a single peer with a session.
func quantum(p config.PeerPostQuantum) func(*facts.Facts) {
	return stats(func(s *facts.Stats) {
		s.PostQuantum = &config.PostQuantumReport{Peers: map[string]config.PeerPostQuantum{"AAAA": p}}
	})
}

func fastCases() []faultCase {
	workers := func(submitted, done uint64) func(*facts.Facts) {
		return stats(func(s *facts.Stats) { s.Lanes[1].TxWorkers = workpool.Stats{Submitted: submitted, Done: done} })
	}
	peer := func(p config.PeerSpread) func(*facts.Facts) {
		return stats(func(s *facts.Stats) { s.Spread.Peers["k1"] = p })
	}
	uses := func(w config.UnderlayReport) func(*facts.Facts) {
		return stats(func(s *facts.Stats) { s.UnderlayStatus = &w })
	}
	xdp := config.UnderlayReport{Mode: config.UnderlayXDP, Path: config.UnderlayXDP, Device: "eth0", How: "zerocopy", Lanes: 4}
	fewer := xdp
	fewer.Lanes, fewer.XDP = 3, []config.XDPLane{{}, {Error: "queue 3 is not there"}}
	none := config.UnderlayReport{Mode: config.UnderlayXDP, Path: config.UnderlayUDP, Reason: "another's program"}
	auto := config.UnderlayReport{Path: config.UnderlayUDP, Reason: "the driver copies"}
	return []faultCase{
		{"fast-underlay", uses(xdp), OK, "AF_XDP on eth0 (zerocopy)", ""},
		{"fast-underlay", uses(fewer), Warning, "3 of 4 lanes: queue 3 is not there", "ethtool -L eth0 combined 4"},
		{"fast-underlay", uses(none), Warning, "although AF_XDP is configured: another's program", "nic-xdp"},
		{"fast-underlay", uses(auto), OK, "UDP sockets: the driver copies", ""},
		{"fast-udp", stats(func(s *facts.Stats) { s.Underlay.GSO = false }), Warning, "returned EIO", "ethtool -K eth0 tx on\nip link set dev wg0 down && ip link set dev wg0 up"},
		{"fast-udp", stats(func(s *facts.Stats) { s.Underlay.DestinationsWithoutGSO = 2 }), Warning, "GSO on, GRO on, the kernel refuses GSO to 2 destinations", "ethtool -K eth0 tx on"},
		{"fast-udp", stats(func(s *facts.Stats) { s.Underlay.DestinationsLosingTrains = 2 }), Warning, "2 destinations lose trains", "ethtool -K eth0 tx-udp-segmentation off"},
		{"fast-udp", both(stats(func(s *facts.Stats) { s.Underlay.GRO = false }), func(f *facts.Facts) {
			f.Kernel.UDP = facts.Known(underlay.Features{GSO: true})
		}), Warning, "GRO off: not supported by the kernel", "udp-gro"},
		{"fast-tun", stats(func(s *facts.Stats) { s.TUN.USO = false }), Warning, "USO off", "tun-offloads"},
		{"tun-queue", stats(func(s *facts.Stats) { s.Drops, s.Lanes[0].TxPackets = map[string]uint64{"tx_tun_queue": 2}, 1999 }), Warning, "2 dropped, 1999 sent", "txqueuelen"},
		{"tun-queue", stats(func(s *facts.Stats) { s.Drops, s.Lanes[0].TxPackets = map[string]uint64{"tx_tun_queue": 2}, 2000 }), OK, "2 dropped, 2000 sent", ""},
		{"fast-steer", stats(func(s *facts.Stats) { s.TUN.Steer = false }), Warning, "although", "CAP_BPF"},
		{"fast-steer", both(stats(func(s *facts.Stats) { s.TUN.Steer = false }), func(f *facts.Facts) { f.Kernel.Steer = unix.EPERM }), Warning, "not permitted", "tun-steer"},
		{"fast-steer", stats(func(s *facts.Stats) { s.TUN.Steer, s.Lanes = false, s.Lanes[:1] }), OK, "one lane", ""},
		{"fast-select", stats(func(s *facts.Stats) { s.Selection = facts.Selection{Reason: "no plan"} }), Warning, "off: no plan", "log"},
		{"fast-select", stats(func(s *facts.Stats) { s.Selection.Reason = "cannot be replaced" }), Warning, "cannot be replaced", "CVE"},
		{"fast-select", stats(func(s *facts.Stats) { s.Selection, s.Spread.Mode = facts.Selection{Reason: "off"}, config.SpreadOff }), OK, "spread is off", ""},
		{"fast-workers", workers(20000, 0), Warning, "none taken by a worker", "CPUs"},
		{"fast-workers", workers(20000, 15000), OK, "15000 of 20000", ""},
		{"fast-workers", stats(func(s *facts.Stats) { *s.Workers = 0 }), Warning, "no workers", "--workers auto"},
		{"fast-workers", func(f *facts.Facts) { f.CPU.Online.Value = []int{0, 1} }, OK, "two CPUs", ""},
		{"fast-spread", stats(func(s *facts.Stats) { s.Spread.Mode = config.SpreadOff }), Warning, "disabled by configuration", "--spread auto"},
		{"fast-spread", peer(config.PeerSpread{Reason: "the peer is behind a NAT"}), Warning, "0 of 1 peers; first reason: the peer is behind a NAT", "udp sport { 51820, 61000-61999 } notrack"},
		{"fast-spread", peer(config.PeerSpread{Active: true, Ports: 2, Blocked: []uint16{61000}}), Warning, "to 1 of them the path drops", "udp sport { 51820, 61000-61999 } notrack"},
		{"fast-spread", stats(func(s *facts.Stats) { s.Spread.Peers = nil }), OK, "0 of 0", ""},
		{"handshakes", failing(config.PeerHandshake{Unanswered: 6}), Warning, "1 of 1 peers do not answer: peer AAAA, 6 initiations unanswered", "public key"},
		{
			"handshakes", failing(config.PeerHandshake{Unanswered: 3, Error: "network is unreachable"}), Warning,
			"could not be sent: network is unreachable", "ip route get",
		},
		{"fast-spread", failing(config.PeerHandshake{Unanswered: 3}), OK, "see handshakes", ""},
		{"post-quantum", quantum(config.PeerPostQuantum{Policy: config.PostQuantumAuto, Active: true, Age: 60}), OK, "active for 1 of 1 peers", ""},
		{"post-quantum", quantum(config.PeerPostQuantum{Policy: config.PostQuantumAuto, Active: true, Age: 900, Stale: true}), Warning, "is 900 s old", "ropewalk log"},
		{"post-quantum", quantum(config.PeerPostQuantum{Policy: config.PostQuantumAuto, Downgraded: true, Reason: "why"}), Warning, "have none: why", "peer AAAA post-quantum forget"},
		{"post-quantum", quantum(config.PeerPostQuantum{Policy: config.PostQuantumRequired, Blocked: true, Reason: "why"}), Warning, "required here, why", "at the peer too"},
		{"post-quantum", quantum(config.PeerPostQuantum{Policy: config.PostQuantumOff}), OK, "off", ""},
		{"post-quantum", both(quantum(config.PeerPostQuantum{Policy: config.PostQuantumRequired, Active: true}), stats(func(s *facts.Stats) {
			s.Drops = map[string]uint64{"rx_not_post_quantum": 3}
		})), Warning, "since the start of the daemon, 3 packets", "required at the peers too"},
		{"post-quantum", both(quantum(config.PeerPostQuantum{Policy: config.PostQuantumAuto, Active: true}), stats(func(s *facts.Stats) {
			s.Drops = map[string]uint64{"rx_not_post_quantum": 3} // of the time before a change
		})), OK, "active for 1 of 1 peers", ""},
		{"stalls", stats(func(s *facts.Stats) { s.Stalls = config.StallReport{Transmit: 1, Lanes: []string{"tx0"}} }), Warning, "lanes make no progress: tx0", "restart"},
		{"stalls", stats(func(s *facts.Stats) { s.Stalls.Staged = 2 }), Warning, "0 of lanes, 2 of packets", "ropewalk log"},
		{"stalls", stats(func(s *facts.Stats) { s.Stalls.Queued = 1 }), Warning, "1 of lanes, 0 of packets", "ropewalk log"},
		{"stalls", stats(func(s *facts.Stats) { s.Stalls = config.StallReport{Queued: 3, Queues: []int{0, 2}} }), Warning, "of lanes: [0 2]", "ip -s link"},
		{
			"stalls", stats(func(s *facts.Stats) {
				s.UnderlayStatus = &config.UnderlayReport{XDP: []config.XDPLane{{Stalls: 1}, {Stalls: 2}}}
			}), Warning, "which were replaced: 3", "underlay udp",
		},
		{"path-mtu", probed(config.PathMTU{State: config.PathMTUConfirmed, Bytes: 1480}), OK, "confirmed by probes for 1 of 1 peers", ""},
		{"path-mtu", probed(config.PathMTU{State: config.PathMTUSearching, Bytes: 1400, InnerBytes: 1328}), Warning, "the least is for peer k1: 1400 bytes, probing larger sizes", "ip link set dev wg0 mtu 1328"},
		{"path-mtu", probed(config.PathMTU{State: config.PathMTUConfirmed, Bytes: 1300, InnerBytes: 1232}), Warning, "too small for IPv6", "1340 bytes"},
		{"path-mtu", probed(config.PathMTU{State: config.PathMTURoute, Bytes: 1500}), OK, "from the route or an ICMP error for 1", ""},
		{"path-mtu", probed(config.PathMTU{State: config.PathMTUUnreachable}), Warning, "no probe of any size", "firewall"},
		{"fast-cipher", stats(func(s *facts.Stats) { s.Cipher = "generic" }), Warning, "one packet at a time", "cpu-cipher"},
		{"fast-cipher", func(f *facts.Facts) {
			f.CipherChoices = []chachapoly.Choice{{Took: 1}}
			stats(func(s *facts.Stats) { s.Cipher = "generic" })(f)
		}, OK, "generic", ""},
		{"fast-cipher", stats(func(s *facts.Stats) { s.Cipher = "" }), OK, "assuming the daemon has this version", ""},
	}
}

func cases() []faultCase {
	return slices.Concat(kernelCases(), processCases(), nicCases(), queueCases(), cpuCases(), hostCases(), portCases(), pluginCases(), tunnelCases(), fastCases(), peerCases())
}

func TestHealthyHostPassesEveryCheck(t *testing.T) {
	withPeer := healthy()
	withPeer.Peer = healthyPeer()
	seen := map[string]bool{}
	for _, f := range append(Examine(healthy()).Findings, Examine(withPeer).Findings...) {
		seen[f.Check] = true
		if f.Status != OK || f.Fix != "" || len(f.Changes) > 0 {
			t.Errorf("%s: %s: got %s (%s), want %q", f.Check, f.Status, f.Found, f.Fix, "")
		}
	}
	for _, c := range Checks() {
		if !seen[c.ID] {
			t.Errorf("%s has no finding", c.ID)
		}
	}
}

func TestChecksReportFaultAndFix(t *testing.T) {
	for _, c := range cases() {
		f := healthy()
		c.modify(f)
		r := Examine(f)
		i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Check == c.check && f.Status == c.want })
		if i < 0 {
			t.Errorf("%s: want %s (%s), got %v", c.check, c.want, c.found, of(r, c.check))
			continue
		}
		got := r.Findings[i]
		if !strings.Contains(got.Found, c.found) || !strings.Contains(got.Fix, c.fix) || c.fix == "" && got.Fix != "" {
			t.Errorf("%s: found %q, fix %q: want %q, %q", c.check, got.Found, got.Fix, c.found, c.fix)
		}
	}
}

func TestFixNeverLowersALimit(t *testing.T) {
	f := healthy()
	both(sysctl(facts.RmemMax, "67108864"), sysctl(facts.WmemMax, "212992"))(f)
	f.Process.Capabilities.Value = 0
	want := "sysctl -w net.core.wmem_max=2097152"
	if got := of(Examine(f), "socket-buffers"); len(got) != 1 || got[0].Fix != want {
		t.Errorf("got %+v, want fix %q", got, want)
	}
}

func of(r Report, check string) []Finding {
	return slices.DeleteFunc(r.Findings, func(f Finding) bool { return f.Check != check })
}

func TestEveryCheckHasFaultCase(t *testing.T) {
	for _, c := range Checks() {
		wrong := slices.ContainsFunc(cases(), func(i faultCase) bool { return i.check == c.ID && (i.want == Warning || i.want == Failed) })
		if !wrong && c.ID != "tcx" { // its absence is no fault
			t.Errorf("%s has no fault case", c.ID)
		}
	}
}

func TestUnreadableSettingsAreUnknown(t *testing.T) {
	for _, f := range Examine(unknown()).Findings {
		wrong := f.Status == Warning || f.Status == Failed
		known := map[string]bool{"tun-device": true, "tunnel": true, "nic-mtu": true, "cpu-cipher": true, "spread-ports": true}
		if wrong && !known[f.Check] {
			t.Errorf("%s: %s: got %s", f.Check, f.Status, f.Found)
		}
	}
}

func TestEmptyFactsGiveCompleteFindings(t *testing.T) {
	for _, f := range Examine(&facts.Facts{Tunnels: make([]facts.Tunnel, 2), NICs: make([]facts.NIC, 2)}).Findings {
		if f.Check == "" || f.Status == "" || f.Why == "" || f.Section == "" {
			t.Errorf("incomplete finding %+v", f)
		}
	}
	if r := Examine(&facts.Facts{}); len(r.Findings) == 0 {
		t.Error("empty facts: got no findings, want some")
	}
}

func TestPreSkipsChecksOfRunningTunnels(t *testing.T) {
	f := healthy()
	f.Pre = true
	for _, finding := range Examine(f).Findings {
		if finding.Section == SectionTunnels || finding.Check == "mtu" {
			t.Errorf("got %s examines running tunnels, want it skipped", finding.Check)
		}
	}
}

func TestExactlyFixableChecksProposeChanges(t *testing.T) {
	proposes := map[string]bool{}
	for _, c := range cases() {
		f := healthy()
		c.modify(f)
		r := Examine(f)
		for _, finding := range r.Findings {
			for _, change := range finding.Changes {
				proposes[finding.Check] = true
				if err := change.check(); err != nil {
					t.Errorf("%s proposes a change that Apply refuses: %v", finding.Check, err)
				}
				if change.Before == change.After || change.Command() == "" {
					t.Errorf("%s proposes a change without effect: %+v", finding.Check, change)
				}
			}
		}
	}
	for _, c := range Checks() {
		if c.Fixable != proposes[c.ID] {
			t.Errorf("%s: got changes proposed %v, want %v, as Fixable", c.ID, proposes[c.ID], c.Fixable)
		}
	}
}

func TestCheckIDsAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.ID] || c.ID == "" || c.Description == "" || c.Why == "" || c.Section == "" {
			t.Errorf("got %+v", c)
		}
		seen[c.ID] = true
	}
}

func TestPortListMatchesKernelFormat(t *testing.T) {
	for want, ranges := range map[string][]spread.Ports{
		"":                 nil,
		"8080,61000-61999": {{First: 61000, Last: 61999}, {First: 8080, Last: 8080}},
		"60990-61999":      {{First: 61000, Last: 61999}, {First: 60990, Last: 60999}},
		"1-9,11":           {{First: 1, Last: 9}, {First: 2, Last: 3}, {First: 11, Last: 11}},
		"65535":            {{First: 65535, Last: 65535}, {First: 65535, Last: 65535}},
	} {
		if got := portList(ranges); got != want {
			t.Errorf("%v: got %q, want %q", ranges, got, want)
		}
	}
}
