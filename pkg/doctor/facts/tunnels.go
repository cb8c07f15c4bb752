// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/adopt"
	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// ErrNotServed is in the chain of the error for a tunnel that was asked for by name, and that nobody serves.
var ErrNotServed = errors.New("neither a process nor the kernel's WireGuard serves it")

// tunnels lists those of the thread's network namespace, or those named, which must be there.
func tunnels(ctx context.Context, dir uapi.Dir, names []string) ([]Tunnel, error) {
	all, err := served(ctx, dir)
	if err != nil {
		return nil, err
	}
	inKernel, err := kernelTunnels(all)
	if err != nil {
		return nil, err
	}
	all = append(all, inKernel...)
	slices.SortFunc(all, func(a, b Tunnel) int { return cmp.Compare(a.Name, b.Name) })
	if len(names) == 0 {
		return all, nil
	}
	var chosen []Tunnel
	for _, name := range names {
		i := slices.IndexFunc(all, func(t Tunnel) bool { return t.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("finding tunnel %s: %w", name, ErrNotServed)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// served asks the processes with a control socket whose interface is here.
func served(ctx context.Context, dir uapi.Dir) ([]Tunnel, error) {
	names, err := dir.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []Tunnel
	for _, name := range names {
		l, err := hostnet.FindLink(name)
		if errors.Is(err, hostnet.ErrNoLink) { // sockets are seen from all network namespaces
			continue
		}
		if err != nil {
			return nil, err
		}
		t := Tunnel{Name: name, Kind: Userspace, MTU: l.MTU}
		t.patiently(ctx, dir)
		all = append(all, t)
	}
	return all, nil
}

// patience is how long a daemon may take to answer.
const patience = 5 * time.Second

func (t *Tunnel) patiently(ctx context.Context, dir uapi.Dir) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t.interview(ctx, dir)
}

// interview asks a daemon for its status, and then for what only ropewalk's tells.
func (t *Tunnel) interview(ctx context.Context, dir uapi.Dir) {
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
	t.configured(status)
	var stats Stats
	if err := client.Stats(&stats); err != nil {
		t.Stats = Unknown[Stats](err)
		return
	}
	t.Kind, t.Stats = Ropewalk, Known(stats)
}

// maxPeers is how many peers' paths are looked at: of thousands, most share them.
const maxPeers = 256

// configured takes over what is no secret.
func (t *Tunnel) configured(status config.Status) {
	t.Port, t.Mark = status.ListenPort, status.FwMark
	for i := range status.Peers {
		p := &status.Peers[i]
		if p.Endpoint.AddrPort.IsValid() && len(t.Peers) < maxPeers {
			t.Peers = append(t.Peers, Peer{
				Endpoint: p.Endpoint.AddrPort,
				PathMTU:  answer(hostnet.PathMTU(p.Endpoint.AddrPort.Addr().Unmap(), p.Endpoint.Scope)),
			})
		}
	}
}

// kernelTunnels lists those of the kernel. What they are needs CAP_NET_ADMIN.
func kernelTunnels(others []Tunnel) ([]Tunnel, error) {
	links, err := hostnet.Links()
	if err != nil {
		return nil, err
	}
	mtu := map[string]int{}
	for _, l := range links {
		if l.Kind == "wireguard" {
			mtu[l.Name] = l.MTU
		}
	}
	if len(mtu) == 0 {
		return nil, nil
	}
	found, err := adopt.WireGuard{}.Tunnels()
	if err != nil {
		return unseen(mtu, err), nil
	}
	var all []Tunnel
	for _, f := range found {
		isOther := slices.ContainsFunc(others, func(t Tunnel) bool { return t.Name == f.Name })
		if f.Userspace || isOther {
			continue
		}
		t := Tunnel{Name: f.Name, Kind: InKernel, Port: f.Port, MTU: mtu[f.Name]}
		for _, p := range f.Peers {
			if p.Endpoint.IsValid() && len(t.Peers) < maxPeers {
				t.Peers = append(t.Peers, Peer{Endpoint: p.Endpoint, PathMTU: answer(hostnet.PathMTU(p.Endpoint.Addr(), 0))})
			}
		}
		all = append(all, t)
	}
	return all, nil
}

// unseen are the kernel's tunnels for who may not ask what they are.
func unseen(mtu map[string]int, err error) []Tunnel {
	var all []Tunnel
	for name, n := range mtu {
		all = append(all, Tunnel{Name: name, Kind: InKernel, MTU: n, Stats: Unknown[Stats](err)})
	}
	return all
}
