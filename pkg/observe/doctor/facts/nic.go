// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// candidate is a device to examine, and the reason.
type candidate struct {
	device, reason string
	named          bool   // by the user: it must exist
	above          string // the device that was replaced by this lower one; "" for none
}

// underlayDevices finds the devices of the default routes and of the routes to all peers, without the tunnels themselves.
func underlayDevices(tunnels []Tunnel) []candidate {
	var list []candidate
	add := func(name, why string) {
		isTunnel := slices.ContainsFunc(tunnels, func(t Tunnel) bool { return t.Name == name })
		known := slices.ContainsFunc(list, func(w candidate) bool { return w.device == name })
		if name != "" && name != "lo" && !isTunnel && !known {
			list = append(list, candidate{device: name, reason: why})
		}
	}
	for _, t := range tunnels {
		for _, p := range t.Peers {
			to := p.Endpoint.AddrPort.Addr()
			add(hostnet.EgressDeviceName(to, p.Endpoint.Scope, t.Mark), fmt.Sprintf("route to peer of %s, %s", t.Name, to))
		}
	}
	add(hostnet.DefaultRouteDevice(hostnet.IPv4), "default route")
	add(hostnet.DefaultRouteDevice(hostnet.IPv6), "IPv6 default route")
	return list
}

// maxDepth and maxNICs limit the walk below VLANs, bonds and bridges.
const (
	maxDepth = 6
	maxNICs  = 64
)

// nics reads the devices. It replaces a stacked device by its lower devices.
func (s source) nics(list []candidate) ([]NIC, error) {
	var leaves []candidate
	for _, w := range list {
		leaves = s.below(leaves, w, maxDepth)
	}
	var all []NIC
	for _, w := range leaves {
		n, err := s.nic(w)
		if errors.Is(err, hostnet.ErrNoLink) && !w.named { // removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// below appends w, or its lower devices in sysfs.
func (s source) below(leaves []candidate, w candidate, depth int) []candidate {
	names, _ := s.names("sys/class/net/" + w.device)
	leaf := true
	for _, name := range names {
		if lower, ok := strings.CutPrefix(name, "lower_"); ok && depth > 0 {
			leaf = false
			leaves = s.below(leaves, candidate{device: lower, reason: w.reason + ", below " + w.device, above: cmp.Or(w.above, w.device)}, depth-1)
		}
	}
	switch known := slices.IndexFunc(leaves, func(l candidate) bool { return l.device == w.device }); {
	case !leaf:
	case known >= 0:
		if w.above == "" { // routes also name it
			leaves[known].above = ""
		}
	case len(leaves) < maxNICs:
		leaves = append(leaves, w)
	}
	return leaves
}

func (s source) nic(w candidate) (NIC, error) {
	l, err := netlink.LinkByName(w.device)
	if _, absent := errors.AsType[netlink.LinkNotFoundError](err); absent {
		err = hostnet.ErrNoLink
	}
	if err != nil {
		return NIC{}, fmt.Errorf("reading device %s: %w", w.device, err)
	}
	a := l.Attrs()
	n := NIC{Name: a.Name, Why: w.reason, Above: w.above, Index: a.Index, MTU: a.MTU, Virtual: l.Type() != "device", Node: -1}
	n.readEthtool()
	n.XDP = Known(attached(a.Xdp))
	n.XDPDriver = result(xsk.Probe(a.Index))
	n.NoXDP = (&xsk.Device{Name: n.Name, Driver: cmp.Or(n.Driver.Value, l.Type()), MTU: n.MTU, Known: n.XDPDriver.Err == nil, Capabilities: n.XDPDriver.Value}).Obstacle()
	n.Measured = result(measurement.Load(measurement.DefaultDir, a.Name))
	s.sysfs(&n)
	return n, nil
}

func attached(x *netlink.LinkXdp) XDP {
	if x == nil || !x.Attached {
		return XDP{}
	}
	return XDP{
		Attached: true, Generic: x.AttachMode == nl.XDP_ATTACHED_SKB, ID: x.ProgId,
		Name: hook.ProgramName(ebpf.ProgramID(x.ProgId)),
	}
}

// sysfs reads the settings in /sys. It reads none if /sys belongs to another network namespace than the thread.
func (s source) sysfs(n *NIC) {
	dir := "sys/class/net/" + n.Name
	index, err := s.number(dir + "/ifindex")
	if err == nil && index != n.Index {
		err = errors.New("/sys belongs to another network namespace")
	}
	if err != nil {
		n.IRQs, n.RPS, n.XPS = Unknown[[]IRQ](err), Unknown[map[string][]int](err), Unknown[map[string][]int](err)
		return
	}
	n.IRQs = result(s.irqs(n.Name))
	n.RPS = result(s.masks(dir, "rx-", "rps_cpus"))
	n.XPS = result(s.masks(dir, "tx-", "xps_cpus"))
	if speed, err := s.number(dir + "/speed"); err == nil {
		n.Speed = max(speed, 0)
	}
	if node, err := s.number(dir + "/device/numa_node"); err == nil {
		n.Node = node
	}
}

// masks reads one CPU mask file of each queue of a device.
func (s source) masks(dir, prefix, file string) (map[string][]int, error) {
	names, err := s.names(dir + "/queues")
	if err != nil {
		return nil, err
	}
	masks := map[string][]int{}
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		cpus, err := s.mask(dir + "/queues/" + name + "/" + file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the kernel's error for a device with one queue
			return nil, err
		}
		masks[name] = cpus
	}
	return masks, nil
}

// readEthtool reads the settings of ethtool's ioctls, which need no privilege.
func (n *NIC) readEthtool() {
	n.RSS = result(hostnet.ReadRSS(n.Name))
	n.Driver = result(hostnet.Driver(n.Name))
	n.Channels = result(hostnet.ReadChannels(n.Name))
	n.Rings = result(hostnet.ReadRings(n.Name))
	n.Coalescing = result(hostnet.ReadCoalescing(n.Name))
	n.Features = result(hostnet.ReadFeatures(n.Name))
}
