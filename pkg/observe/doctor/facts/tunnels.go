// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// ErrNoTunnel is wrapped in the error for a tunnel in Options.Tunnels that does not exist.
var ErrNoTunnel = errors.New("no such tunnel in a daemon or in the kernel's WireGuard")

// tunnels lists the tunnels of the thread's network namespace. If there are names, others has the
// tunnels with other names. Tunnels in names must exist.
func tunnels(ctx context.Context, dir uapi.Dir, names []string) (chosen, others []Tunnel, err error) {
	all, err := userspaceTunnels(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	inKernel, err := kernelTunnels(all)
	if err != nil {
		return nil, nil, err
	}
	all = append(all, inKernel...)
	slices.SortFunc(all, func(a, b Tunnel) int { return cmp.Compare(a.Name, b.Name) })
	if len(names) == 0 {
		return all, nil, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(t Tunnel) bool { return t.Name == name })
		if i < 0 {
			return nil, nil, fmt.Errorf("finding tunnel %s: %w", name, ErrNoTunnel)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, slices.DeleteFunc(all, func(t Tunnel) bool { return slices.Contains(names, t.Name) }), nil
}

// userspaceTunnels queries each control socket whose interface is in this network namespace.
func userspaceTunnels(ctx context.Context, dir uapi.Dir) ([]Tunnel, error) {
	names, err := dir.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []Tunnel
	for _, name := range names {
		l, err := hostnet.FindLink(name)
		if errors.Is(err, hostnet.ErrNoLink) { // control sockets are visible from all network namespaces
			continue
		}
		if err != nil {
			return nil, err
		}
		t := Tunnel{Name: name, Kind: Userspace, MTU: l.MTU}
		t.readWithTimeout(ctx, dir)
		all = append(all, t)
	}
	return all, nil
}

// daemonTimeout limits how long a daemon may take to answer.
const daemonTimeout = 5 * time.Second

func (t *Tunnel) readWithTimeout(ctx context.Context, dir uapi.Dir) {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	t.readDaemon(ctx, dir)
}

// readDaemon reads a daemon's status, and then ropewalk's statistics.
func (t *Tunnel) readDaemon(ctx context.Context, dir uapi.Dir) {
	client, err := dir.Dial(t.Name)
	if err != nil {
		t.Stats = Unknown[Stats](err)
		return
	}
	defer client.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	status, err := client.Status()
	if err != nil {
		t.Stats = Unknown[Stats](err)
		return
	}
	t.setStatus(status)
	var stats Stats
	if err := client.Stats(&stats); err != nil {
		t.Stats = Unknown[Stats](err)
		return
	}
	t.Kind, t.Stats = Ropewalk, Known(stats)
}

// maxPeers limits the path MTU lookups: thousands of peers mostly share paths.
const maxPeers = 256

// setStatus copies the status without secrets.
func (t *Tunnel) setStatus(status config.Status) {
	t.Port, t.Mark = status.ListenPort, status.FwMark
	for i := range status.Peers {
		p := &status.Peers[i]
		if !p.Endpoint.AddrPort.IsValid() {
			continue
		}
		if len(t.Peers) < maxPeers {
			to := p.Endpoint.AddrPort.Addr().Unmap()
			t.Peers = append(t.Peers, Peer{
				Endpoint: p.Endpoint, AllowedIPs: p.AllowedIPs,
				PathMTU: result(hostnet.PathMTU(to, p.Endpoint.Scope, t.Mark)), Device: hostnet.EgressDeviceName(to, p.Endpoint.Scope, t.Mark),
			})
		}
		if addr := p.Endpoint.AddrPort.Addr().Unmap(); t.Mark == NodeTrafficMark && isNode(p, addr) {
			for _, a := range nodeAddrs(p, addr) {
				t.Nodes = append(t.Nodes, Node{a, hostnet.EgressDeviceName(a, 0, 0)})
			}
		}
	}
}

// isNode reports whether a peer with an endpoint at addr is a node: its allowed IPs then contain addr.
func isNode(p *config.PeerStatus, addr netip.Addr) bool {
	return slices.Contains(p.AllowedIPs, netip.PrefixFrom(addr, addr.BitLen()))
}

// nodeAddrs returns the addresses of a node: prefixes of one address in its allowed IPs, of the same IP version.
func nodeAddrs(p *config.PeerStatus, addr netip.Addr) (all []netip.Addr) {
	for _, a := range p.AllowedIPs {
		if a.IsSingleIP() && a.Addr().Is4() == addr.Is4() {
			all = append(all, a.Addr())
		}
	}
	return all
}

// kernelTunnels lists the kernel's WireGuard tunnels. Reading their configuration needs CAP_NET_ADMIN.
func kernelTunnels(others []Tunnel) ([]Tunnel, error) {
	links, err := hostnet.Links()
	if err != nil {
		return nil, err
	}
	mtu, index := map[string]int{}, map[string]uint32{}
	for _, l := range links {
		index[l.Name] = uint32(l.Index)
		if l.Kind == "wireguard" {
			mtu[l.Name] = l.MTU
		}
	}
	if len(mtu) == 0 {
		return nil, nil
	}
	found, err := spreader.WireGuard{}.Tunnels()
	if err != nil {
		return hiddenTunnels(mtu, err), nil
	}
	var all []Tunnel
	for _, f := range found {
		isOther := slices.ContainsFunc(others, func(t Tunnel) bool { return t.Name == f.Name })
		if f.Userspace || isOther {
			continue
		}
		t := Tunnel{Name: f.Name, Kind: InKernel, Port: f.Port, Mark: f.FwMark, MTU: mtu[f.Name]}
		for _, p := range f.Peers {
			if p.Endpoint.IsValid() && len(t.Peers) < maxPeers {
				at := config.Endpoint{AddrPort: netip.AddrPortFrom(p.Endpoint.Addr().WithZone(""), p.Endpoint.Port()), Scope: index[p.Endpoint.Addr().Zone()]}
				t.Peers = append(t.Peers, Peer{Endpoint: at, PathMTU: result(hostnet.PathMTU(at.AddrPort.Addr(), at.Scope, t.Mark))})
			}
		}
		all = append(all, t)
	}
	return all, nil
}

// readThreaded sets Threaded. Devices whose setting cannot be read are not threaded.
func (s source) readThreaded(tunnels []Tunnel) {
	for i := range tunnels {
		if t := &tunnels[i]; t.Kind == InKernel {
			mode, _ := s.number("sys/class/net/" + t.Name + "/threaded")
			t.Threaded = mode > 0
		}
	}
}

// readReplaced sets Replaced, for routes in the main table and in the table of the tunnel's mark,
// as wg-quick has them.
func readReplaced(tunnels []Tunnel) {
	for i := range tunnels {
		t := &tunnels[i]
		routes, _, err := hostnet.LinkRoutes(t.Name)
		var prefixes []netip.Prefix
		for _, r := range routes {
			if r.Table == hostnet.MainTable || r.Table == t.Mark {
				prefixes = append(prefixes, r.Dst)
			}
		}
		paths, lookup := hostnet.OtherPaths(prefixes, t.Name)
		paths = slices.DeleteFunc(paths, func(p hostnet.OtherPath) bool { return !p.Replaces() && !p.Diverts() })
		t.Replaced = result(paths, errors.Join(err, lookup))
	}
}

// hiddenTunnels returns the kernel's tunnels without their configuration, which needs CAP_NET_ADMIN.
func hiddenTunnels(mtu map[string]int, err error) []Tunnel {
	var all []Tunnel
	for name, n := range mtu {
		all = append(all, Tunnel{Name: name, Kind: InKernel, MTU: n, Stats: Unknown[Stats](err)})
	}
	return all
}
