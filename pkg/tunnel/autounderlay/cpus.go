// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// cpuSelection is the list of CPUs to which received packets are distributed, or the reason why there are none.
type cpuSelection struct {
	cpus         []int
	reason       string
	stableReason string // the reason without numbers that each new peer may change
}

// logReason returns the text to log. It is stable while only numbers change.
func (s *cpuSelection) logReason() string { return cmp.Or(s.stableReason, s.reason) }

// chooseCPUs returns the CPUs to which an XDP program distributes messages (CPUMAP) before they enter the stack. c is the
// underlay path of data messages. auto distributes only where it helps. A configured list is used wherever the program can run.
func chooseCPUs(want config.ReceiveCPUs, f *facts, c choice) cpuSelection {
	no := func(format string, args ...any) cpuSelection {
		return cpuSelection{reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case c.xdp:
		return no("AF_XDP sockets on %s receive the data messages", f.device)
	case f.device == "":
		return no("no device: %v", f.deviceErr)
	case f.driver == bonding:
		return no("%s is a bond, and its slaves have the queues", f.device)
	case f.known && !f.caps.Native:
		return no("the driver of %s (%s) does not support native XDP: use RPS (/sys/class/net/%[1]s/queues/rx-*/rps_cpus)", f.device, f.driver)
	case f.stripsVLAN:
		return no("%s has VLANs and strips their tags, which XDP loses: use ethtool -K %[1]s rxvlan off", f.device)
	case !want.Auto:
		return cpuSelection{cpus: want.List}
	case hasPartialChecksums(f.driver):
		return no("%s (%s) receives packets without complete checksums, which no other CPU can process", f.device, f.driver)
	case !f.reachesEnoughPeers():
		s := no("%d of %d peers are not reached through %s", f.peers-f.reachable, f.peers, f.device)
		s.stableReason = fmt.Sprintf("most peers are not reached through %s", f.device)
		return s
	case len(f.cpus) < 2:
		return no("this process may use only one CPU")
	case f.hashQueues >= len(f.cpus):
		return no("%s already distributes by port among %d receive queues, for %d CPUs", f.device, f.hashQueues, len(f.cpus))
	}
	return cpuSelection{cpus: slices.Clip(f.cpus[:min(len(f.cpus), config.MaxReceiveCPUs)])}
}

// hasPartialChecksums reports whether packets from a driver may have incomplete checksums, because the other end is on
// the same host: veth, the TAP device of a virtual machine, and the guest's devices under Xen (XEN_NETRXF_csum_blank), VMware
// and Hyper-V. virtio_net is none: it turns such checksums off (VIRTIO_NET_F_GUEST_CSUM) once an XDP program is attached.
func hasPartialChecksums(driver string) bool {
	return slices.Contains([]string{"veth", "tun", "vif", "vmxnet3", "hv_netvsc"}, driver)
}

// attaching is the reason while the program is being attached.
const attaching = "the XDP program is being attached"

// report returns the effect of the configured CPUs, which are not off.
func (s *cpuSelection) report(want config.ReceiveCPUs, device string, attached bool, err error) *config.ReceiveCPUsReport {
	r := &config.ReceiveCPUsReport{Mode: want, Device: device}
	switch {
	case len(s.cpus) == 0:
		r.Reason = cmp.Or(s.reason, notYet)
	case attached:
		r.CPUs = s.cpus
	case err != nil:
		r.Reason = err.Error()
	default:
		r.Reason = attaching
	}
	return r
}
