// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/bench"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/bench/result"
)

// FactsArgs describes the measurement to come.
type FactsArgs struct {
	// Own and Far are the addresses of the underlay. If Own is invalid, it is the address that ssh has reached.
	Own, Far netip.Addr
	// Port is the UDP port of the tunnel, TrafficPort the TCP port of the traffic.
	Port, TrafficPort uint16
}

// Facts describe a host before it is measured.
type Facts struct {
	result.Host
	Own     netip.Addr // its address on the underlay
	Device  string     // by which packets to the other host leave
	CPUs    []int      // online
	UID     int
	Free    uint64   // bytes that the programs' directory has left
	Kernels string   // why there is no in-kernel WireGuard; empty if there is one
	Busy    []string // addresses and ports that are in use
	Failed  []string // checks of doctor without which no tunnel runs
}

// Own returns the address of this host that ssh has reached.
func (h *Host) Own(_ None, own *netip.Addr) (err error) {
	f := strings.Fields(h.a.cfg.Connection) // client address, client port, own address, own port
	if len(f) < 4 {
		return errors.New("finding this host's address: SSH_CONNECTION is not set")
	}
	*own, err = netip.ParseAddr(f[2])
	return err
}

// Facts reads what is to be known of this host.
func (h *Host) Facts(args FactsArgs, f *Facts) error {
	l, err := hostnet.EgressDevice(args.Far, 0, 0)
	if err != nil {
		return fmt.Errorf("finding the device to %v, %w (--addresses names the network between the hosts)", args.Far, err)
	}
	*f = Facts{Own: args.Own, Device: l.Name, UID: os.Getuid(), Kernels: inKernel()}
	f.Free, err = freeBytes(h.a.cfg.Dir)
	f.Busy = inUse(args)
	f.machine(h.a.cfg.Root)
	f.nic(h.a.cfg.Root, l)
	if err := bench.CheckIdle(h.a.ctx); err != nil {
		f.Doctor = append(f.Doctor, "load: "+err.Error())
	}
	return errors.Join(err, f.doctor(filepath.Join(h.a.cfg.Dir, "ropewalk"), args.Port))
}

func freeBytes(dir string) (uint64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return s.Bavail * uint64(s.Bsize), err
}

// inKernel returns why an interface of the in-kernel WireGuard cannot be created. It creates one in a namespace of its own.
func inKernel() string {
	lab, err := netlab.New(prefix)
	if err != nil {
		return err.Error()
	}
	defer lab.Close()
	h, err := lab.Host("probe")
	if err == nil {
		err = h.AddWireGuard("probe")
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// inUse returns the ports that another program has.
func inUse(args FactsArgs) (busy []string) {
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.IPv6Unspecified(), args.Port)))
	if err != nil {
		busy = append(busy, err.Error())
	} else {
		udp.Close()
	}
	tcp, err := net.Listen("tcp", net.JoinHostPort("::", strconv.Itoa(int(args.TrafficPort))))
	if err != nil {
		return append(busy, err.Error())
	}
	tcp.Close()
	return busy
}

// sysctls are the names of sysctls that decide about throughput.
func sysctls() []string {
	return []string{
		"net.core.rmem_max", "net.core.wmem_max", "net.core.netdev_budget", "net.core.netdev_budget_usecs", "net.core.netdev_max_backlog",
		"net.core.busy_poll", "net.core.default_qdisc", "net.core.bpf_jit_enable", "net.ipv4.tcp_congestion_control", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
		"kernel.numa_balancing",
	}
}

// machine reads processor, kernel and sysctls. Fields that cannot be read stay empty.
func (f *Facts) machine(root string) {
	info := text(root + "/proc/cpuinfo")
	f.Processor, f.Microcode = Processor(info), cpuField(info, "microcode")
	f.CPUs = cpuList(text(root + "/sys/devices/system/cpu/online"))
	f.Cores, f.Arch = len(f.CPUs), runtime.GOARCH
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		f.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	f.Instance = text(root + "/sys/class/dmi/id/product_name")
	f.Sysctls = map[string]string{}
	for _, name := range sysctls() {
		if v := text(root + Sysctl(name, "").Path); v != "" {
			f.Sysctls[name] = strings.Join(strings.Fields(v), " ")
		}
	}
}

// nic reads the device. /sys may belong to another network namespace.
func (f *Facts) nic(root string, l hostnet.Link) {
	f.NIC, f.MTU = l.Name, l.MTU
	if d, err := hostnet.ReadDriver(l.Name); err == nil {
		f.Driver, f.Firmware = d.Name, d.Firmware
	}
	if c, err := hostnet.ReadChannels(l.Name); err == nil {
		f.Queues = max(c.Combined, c.RX)
	}
	switch rss, err := hostnet.ReadRSS(l.Name); {
	case errors.Is(err, hostnet.ErrNoRSS):
		f.RSS = "no RSS"
	case err != nil:
		f.RSS = err.Error()
	default:
		f.RSS = rssText(&rss.RSS)
	}
	if features, err := hostnet.ReadFeatures(l.Name); err == nil {
		f.Offloads = map[string]bool{}
		for name, v := range features {
			f.Offloads[name] = v.On
		}
	}
	dir := root + "/sys/class/net/" + l.Name
	if speed, err := strconv.Atoi(text(dir + "/speed")); err == nil && speed > 0 && text(dir+"/ifindex") == strconv.Itoa(l.Index) {
		f.LinkGbps = float64(speed) / 1000
		if product := text(dir + "/device/label"); product != "" {
			f.NIC = product
		}
	}
}

func rssText(rss *spread.RSS) string {
	function, fields := "Toeplitz", "UDP by addresses and ports"
	if rss.Function != spread.Toeplitz {
		function = "another hash than Toeplitz"
	}
	if rss.UDP4 != spread.FourTuple {
		fields = "UDP by other fields than addresses and ports"
	}
	return fmt.Sprintf("RSS: %s, a table of %d, %s, flow rules: %d", function, len(rss.Indirection), fields, rss.Rules)
}

// doctor runs `ropewalk doctor`.
func (f *Facts) doctor(ropewalk string, port uint16) error {
	out, err := exec.Command(ropewalk, "doctor", "--pre", "--json", "--device", f.Device, "--port", strconv.Itoa(int(port))).Output()
	var report struct {
		Findings []struct{ Check, Section, Status, Found string }
	}
	if parsing := json.Unmarshal(out, &report); parsing != nil { // it exits with an error if it has found something
		return fmt.Errorf("running ropewalk doctor: %w", errors.Join(err, parsing))
	}
	for _, c := range report.Findings {
		what := c.Check + ": " + c.Found
		switch {
		case c.Status == "failed" && (c.Section == "kernel" || c.Section == "privileges"):
			f.Failed = append(f.Failed, what)
		case c.Status == "failed" || c.Status == "warning":
			f.Doctor = append(f.Doctor, what)
		}
	}
	version, err := exec.Command(ropewalk, "--version").Output()
	f.Version = strings.TrimPrefix(strings.TrimSpace(string(version)), "ropewalk version ")
	return err
}

const (
	// minKernel is the oldest release for ropewalk, minFree the space for logs, in bytes.
	minKernelMajor, minKernelMinor = 5, 10
	minFree                        = 1 << 20
)

// Problems returns why the host cannot be measured.
func (f *Facts) Problems() (list []error) {
	var major, minor int
	if f.UID != 0 {
		list = append(list, fmt.Errorf("ssh logs in as user %d: want root", f.UID))
	}
	if _, err := fmt.Sscanf(f.Kernel, "%d.%d", &major, &minor); err != nil || major < minKernelMajor || major == minKernelMajor && minor < minKernelMinor {
		list = append(list, fmt.Errorf("its kernel is Linux %s: want %d.%d or later", f.Kernel, minKernelMajor, minKernelMinor))
	}
	for _, c := range f.Failed {
		list = append(list, fmt.Errorf("ropewalk doctor: %s", c))
	}
	if f.Free < minFree {
		list = append(list, fmt.Errorf("its disk is full: %d bytes left", f.Free))
	}
	for _, b := range f.Busy {
		list = append(list, fmt.Errorf("a port is in use: %s (--port chooses another UDP port)", b))
	}
	return list
}

func text(path string) string {
	b, _ := os.ReadFile(path) // the caller goes on without it
	return strings.TrimSpace(string(b))
}

// Processor returns the name of the first processor in /proc/cpuinfo. arm64 has only a part number there, and else the
// architecture stands in.
func Processor(cpuinfo string) string {
	return cmp.Or(cpuField(cpuinfo, "model name"), cpuField(cpuinfo, "CPU part"), runtime.GOARCH)
}

// cpuField finds a field of the first processor in /proc/cpuinfo.
func cpuField(cpuinfo, field string) string {
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == field {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}

// cpuList parses a list such as "0-3,8".
func cpuList(s string) (cpus []int) {
	for part := range strings.SplitSeq(s, ",") {
		first, last, _ := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(cmp.Or(last, first))
		if err != nil || err2 != nil {
			continue
		}
		for c := from; c <= to; c++ {
			cpus = append(cpus, c)
		}
	}
	return cpus
}
