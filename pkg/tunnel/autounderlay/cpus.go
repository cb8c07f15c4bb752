// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// cpuSelection is over which processors the kernel's part of receiving is spread, and why over none.
type cpuSelection struct {
	cpus   []int
	reason string
	gist   string // of a reason with numbers that each peer who comes may change
}

// news is what of the reason is logged, if it has become other.
func (s *cpuSelection) news() string { return cmp.Or(s.gist, s.reason) }

// chooseCPUs says over which processors messages are spread before the stack has them, once it is known that they go the way of c.
// auto spreads where there is something to gain; a list is taken as it is wherever the program can run.
func chooseCPUs(want config.ReceiveCPUs, f *facts, c choice) cpuSelection {
	no := func(format string, args ...any) cpuSelection {
		return cpuSelection{reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case c.xdp:
		return no("AF_XDP sockets on %s have the messages before", f.device)
	case f.device == "":
		return no("no device: %v", f.noDevice)
	case f.driver == bonding:
		return no("%s is a bond, and its parts have the queues", f.device)
	case f.known && !f.caps.Native:
		return no("the driver of %s (%s) runs no XDP programs: use RPS (/sys/class/net/%[1]s/queues/rx-*/rps_cpus)", f.device, f.driver)
	case f.strips:
		return no("%s has VLANs upon it and takes their tags off, which no other processor would see: ethtool -K %[1]s rxvlan off", f.device)
	case !want.Auto:
		return cpuSelection{cpus: want.List}
	case leavesChecksums(f.driver):
		return no("%s (%s) gets packets whose checksums were left to it, which no other processor can take", f.device, f.driver)
	case !f.reachesEnoughPeers():
		s := no("%d of %d peers are not reached by %s", f.peers-f.here, f.peers, f.device)
		s.gist = fmt.Sprintf("most peers are not reached by %s", f.device)
		return s
	case len(f.cpus) < 2:
		return no("there is one processor to use")
	case f.hashed >= len(f.cpus):
		return no("%s chooses among %d receive queues by port already, for %d processors", f.device, f.hashed, len(f.cpus))
	}
	return cpuSelection{cpus: slices.Clip(f.cpus[:min(len(f.cpus), config.MaxReceiveCPUs)])}
}

// leavesChecksums tells of the virtual devices whose other end, on the same host, may leave checksums to them: those of namespaces,
// virtual machines without a driver of ours, Xen (XEN_NETRXF_csum_blank), VMware and Hyper-V. virtio_net is told not to once there is
// an XDP program.
func leavesChecksums(driver string) bool {
	return slices.Contains([]string{"veth", "tun", "vif", "vmxnet3", "hv_netvsc"}, driver)
}

// report says what became of the processors that were wanted.
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
		r.Reason = notYet
	}
	return r
}
