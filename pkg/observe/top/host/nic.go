// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Limits for parsed numbers and for the walk to lower devices.
const (
	maxQueue = 1 << 12
	maxDepth = 6 // of VLANs on bonds on ...
	maxNICs  = 16
)

// find returns the NICs on the routes to the endpoints, or on the default routes without endpoints.
func (r *Reader) find(tunnel string, endpoints []config.Endpoint, mark uint32) []string {
	if len(endpoints) == 0 { // documentation addresses (RFC 5737, RFC 3849) use the default route
		endpoints = []config.Endpoint{{AddrPort: netip.MustParseAddrPort("192.0.2.1:0")}, {AddrPort: netip.MustParseAddrPort("[2001:db8::1]:0")}}
	}
	var nics []string
	for _, to := range endpoints[:min(len(endpoints), maxDestinations)] {
		device := hostnet.EgressDeviceName(to.AddrPort.Addr(), to.Scope, mark)
		if device != "" && device != "lo" && device != tunnel {
			nics = r.below(nics, device, maxDepth)
		}
	}
	return nics
}

// below appends the device, or the lower devices of a VLAN, a bond or a bridge.
func (r *Reader) below(nics []string, device string, depth int) []string {
	lower, _ := filepath.Glob(filepath.Join(r.root, "sys/class/net", device, "lower_*"))
	if len(lower) == 0 || depth == 0 {
		if !slices.Contains(nics, device) && len(nics) < maxNICs {
			nics = append(nics, device)
		}
		return nics
	}
	for _, path := range lower {
		nics = r.below(nics, strings.TrimPrefix(filepath.Base(path), "lower_"), depth-1)
	}
	return nics
}

// vectors returns a device's MSI vectors from its sysfs directory, or for virtio from its PCI
// device's directory.
func (r *Reader) vectors(device string) []int {
	if !r.sameNamespace(device) {
		return nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(r.root, "sys/class/net", device, "device"))
	if err != nil {
		return nil
	}
	for range 2 {
		entries, err := os.ReadDir(filepath.Join(dir, "msi_irqs"))
		if err == nil {
			return numbers(entries)
		}
		dir = filepath.Dir(dir)
	}
	return nil
}

// sameNamespace reports whether sysfs shows the same device. A sysfs mount shows the network namespace of its mount time.
func (r *Reader) sameNamespace(device string) bool {
	if r.root != "/" {
		return true
	}
	l, err := netlink.LinkByName(device)
	return err == nil && strings.TrimSpace(r.text("sys/class/net/"+device+"/ifindex")) == strconv.Itoa(l.Attrs().Index)
}

func numbers(entries []os.DirEntry) []int {
	var list []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// countedQueues returns the queue counters of the kernel (netlink qstats) or of the driver (`ethtool -S`). Some drivers have
// moved them to netlink (virtio_net in Linux 6.10).
func countedQueues(device string) map[int]*top.QueueCounters {
	if queues := queueStats(device); len(queues) > 0 {
		return queues
	}
	stats, err := hostnet.ReadCounters(device)
	if err != nil {
		return map[int]*top.QueueCounters{}
	}
	return queuesIn(stats)
}
