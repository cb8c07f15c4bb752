// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/xsk"
)

// wanted is a device to look at, and why.
type wanted struct {
	device, why string
	named       bool // by the user: it must be there
}

// underlayDevices finds the devices of the default routes and of the routes to all peers, without the tunnels themselves.
func (s source) underlayDevices(tunnels []Tunnel) []wanted {
	var list []wanted
	add := func(name, why string) {
		isTunnel := slices.ContainsFunc(tunnels, func(t Tunnel) bool { return t.Name == name })
		known := slices.ContainsFunc(list, func(w wanted) bool { return w.device == name })
		if name != "" && name != "lo" && !isTunnel && !known {
			list = append(list, wanted{device: name, why: why})
		}
	}
	for _, t := range tunnels {
		for _, p := range t.Peers {
			add(hostnet.DeviceTowards(p.Endpoint.Addr(), t.Mark), fmt.Sprintf("towards a peer of %s, %s", t.Name, p.Endpoint.Addr()))
		}
	}
	add(s.defaultRoute("proc/thread-self/net/route", parseRoute4), "default route")
	add(s.defaultRoute("proc/thread-self/net/ipv6_route", parseRoute6), "default route of IPv6")
	return list
}

// maxDepth and maxNICs bound the walk below VLANs, bonds and bridges.
const (
	maxDepth = 6
	maxNICs  = 64
)

// nics reads the devices, and in place of those that stand on others, these.
func (s source) nics(list []wanted) ([]NIC, error) {
	var leaves []wanted
	for _, w := range list {
		leaves = s.below(leaves, w, maxDepth)
	}
	var all []NIC
	for _, w := range leaves {
		n, err := s.nic(w)
		if errors.Is(err, hostnet.ErrNoLink) && !w.named { // it has just gone
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// below appends w, or what sysfs says it stands on.
func (s source) below(leaves []wanted, w wanted, depth int) []wanted {
	names, _ := s.names("sys/class/net/" + w.device)
	leaf := true
	for _, name := range names {
		if lower, ok := strings.CutPrefix(name, "lower_"); ok && depth > 0 {
			leaf = false
			leaves = s.below(leaves, wanted{device: lower, why: w.why + ", below " + w.device}, depth-1)
		}
	}
	known := slices.ContainsFunc(leaves, func(l wanted) bool { return l.device == w.device })
	if leaf && !known && len(leaves) < maxNICs {
		leaves = append(leaves, w)
	}
	return leaves
}

func (s source) nic(w wanted) (NIC, error) {
	l, err := netlink.LinkByName(w.device)
	if _, absent := errors.AsType[netlink.LinkNotFoundError](err); absent {
		err = hostnet.ErrNoLink
	}
	if err != nil {
		return NIC{}, fmt.Errorf("looking at device %s: %w", w.device, err)
	}
	a := l.Attrs()
	n := NIC{Name: a.Name, Why: w.why, Index: a.Index, MTU: a.MTU, Virtual: l.Type() != "device", Node: -1}
	n.ask()
	n.XDP = Known(attached(a.Xdp))
	n.XDPDriver = answer(xsk.Probe(a.Index))
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

// sysfs fills in what /sys tells. Of a thread in another network namespace than its /sys it tells nothing.
func (s source) sysfs(n *NIC) {
	dir := "sys/class/net/" + n.Name
	index, err := s.number(dir + "/ifindex")
	if err == nil && index != n.Index {
		err = errors.New("/sys is that of another network namespace")
	}
	if err != nil {
		n.IRQs, n.RPS, n.XPS = Unknown[[]IRQ](err), Unknown[map[string][]int](err), Unknown[map[string][]int](err)
		return
	}
	n.IRQs = answer(s.irqs(n.Name))
	n.RPS = answer(s.masks(dir, "rx-", "rps_cpus"))
	n.XPS = answer(s.masks(dir, "tx-", "xps_cpus"))
	if speed, err := s.number(dir + "/speed"); err == nil {
		n.Speed = max(speed, 0)
	}
	if node, err := s.number(dir + "/device/numa_node"); err == nil {
		n.Node = node
	}
}

// masks reads a file of each of a device's queues.
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
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // as the kernel says it of a device with one queue
			return nil, err
		}
		masks[name] = cpus
	}
	return masks, nil
}
