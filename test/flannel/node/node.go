// SPDX-License-Identifier: Apache-2.0

// Package node runs a backend of flannel on a node, whose leases are files in place of objects of the API server or etcd.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"github.com/flannel-io/flannel/pkg/backend"
	"github.com/flannel-io/flannel/pkg/backend/hostgw"
	"github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/backend/wireguard"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"
	"golang.org/x/sys/unix"
)

// Node is one node of the cluster.
type Node struct {
	Name    string
	Device  string
	Addr    netip.Addr
	Pods    netip.Prefix
	Backend string // wireguard, vxlan or host-gw
	Leases  string // directory in which all nodes publish their leases, in place of the API server or etcd
	Key     string // file of the node's private key, which flannel creates
}

// podNetwork is the network of all pods.
var podNetwork = netip.MustParsePrefix("10.244.0.0/16")

// backends are flannel's constructors.
var backends = map[string]func(subnet.Manager, *backend.ExternalInterface) (backend.Backend, error){
	"wireguard": wireguard.New, "vxlan": vxlan.New, "host-gw": hostgw.New,
}

// Run is flannel on one node, given as JSON, until a signal.
func Run(config string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	var n Node
	if err := json.Unmarshal([]byte(config), &n); err != nil {
		return err
	}
	newBackend := backends[n.Backend]
	if newBackend == nil {
		return fmt.Errorf("unknown backend %q", n.Backend)
	}
	device, err := net.InterfaceByName(n.Device)
	if err != nil {
		return err
	}
	if err := os.Setenv("WIREGUARD_KEY_FILE", n.Key); err != nil {
		return err
	}
	m := &manager{node: n}
	addr := net.IP(n.Addr.AsSlice())
	b, err := newBackend(m, &backend.ExternalInterface{Iface: device, IfaceName: n.Device, IfaceAddr: addr, ExtAddr: addr})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	cfg, err := m.GetNetworkConfig(ctx)
	if err != nil {
		return err
	}
	network, err := b.RegisterNetwork(ctx, &wg, cfg)
	if err != nil {
		return err
	}
	network.Run(ctx)
	return nil
}

// manager is a subnet.Manager whose leases are files.
type manager struct {
	subnet.Manager // the calls of flanneld, which the backend does not make
	node           Node
}

// network4 is flannel's form of a prefix.
func network4(p netip.Prefix) ip.IP4Net {
	return ip.IP4Net{IP: ip.FromIP(p.Addr().AsSlice()), PrefixLen: uint(p.Bits())}
}

// GetNetworkConfig implements subnet.Manager.
func (m *manager) GetNetworkConfig(context.Context) (*subnet.Config, error) {
	return &subnet.Config{EnableIPv4: true, Network: network4(podNetwork), BackendType: m.node.Backend}, nil
}

// AcquireLease implements subnet.Manager: it publishes the node's lease.
func (m *manager) AcquireLease(_ context.Context, attrs *lease.LeaseAttrs) (*lease.Lease, error) {
	l := &lease.Lease{EnableIPv4: true, Subnet: network4(m.node.Pods), Attrs: *attrs}
	b, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	part := filepath.Join(m.node.Leases, m.node.Name+".part")
	if err := os.WriteFile(part, b, 0o600); err != nil {
		return nil, err
	}
	return l, os.Rename(part, filepath.Join(m.node.Leases, m.node.Name+".json"))
}

// WatchLeases implements subnet.Manager: it reports each lease once.
func (m *manager) WatchLeases(ctx context.Context, receiver chan []lease.LeaseWatchResult) error {
	defer close(receiver)
	known := map[string]bool{}
	for ctx.Err() == nil {
		events, err := m.newLeases(known)
		if err != nil {
			return err
		}
		if len(events) > 0 {
			select {
			case receiver <- []lease.LeaseWatchResult{{Events: events}}:
			case <-ctx.Done():
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// newLeases returns the leases whose files are not known yet.
func (m *manager) newLeases(known map[string]bool) (events []lease.Event, err error) {
	files, err := filepath.Glob(filepath.Join(m.node.Leases, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if known[file] {
			continue
		}
		var l lease.Lease
		b, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(b, &l)
		}
		if err != nil {
			return nil, fmt.Errorf("reading a lease: %w", err)
		}
		known[file] = true
		events = append(events, lease.Event{Type: lease.EventAdded, Lease: l})
	}
	return events, nil
}
