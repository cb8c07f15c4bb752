// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"
)

// apiDialer records the addresses at which the API server was reached. They bypass the tunnel, because the tunnel needs the API
// to come up. It is safe for concurrent use.
type apiDialer struct {
	literal   []netip.Addr // from the configured host
	next      func(ctx context.Context, network, address string) (net.Conn, error)
	onNewAddr func() // called after each new address

	mu    sync.Mutex
	addrs []netip.Addr
	ports map[netip.Addr]uint16 // the last ports at which literal and addrs were reached
}

// dialTimeout and keepAlive are client-go's defaults.
const (
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

func (d *apiDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	next := d.next
	if next == nil {
		next = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	}
	c, err := next(ctx, network, address)
	if err == nil {
		d.record(c.RemoteAddr())
	}
	return c, err
}

func (d *apiDialer) record(remote net.Addr) {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	d.mu.Lock()
	i, isLiteral := slices.Index(d.addrs, addr), slices.Contains(d.literal, addr)
	isNew := i < 0 && !isLiteral
	if i >= 0 {
		d.addrs = slices.Delete(d.addrs, i, i+1)
	}
	if !isLiteral {
		d.addrs = append(d.addrs, addr)
		d.addrs = d.addrs[max(0, len(d.addrs)-maxAPIAddrs):]
	}
	newPort := d.ports[addr] != tcp.AddrPort().Port()
	d.setPort(addr, tcp.AddrPort().Port())
	d.mu.Unlock()
	if isNew || newPort {
		d.onNewAddr()
	}
}

// setPort records a port, and forgets the ports of addresses that are no longer recorded.
func (d *apiDialer) setPort(addr netip.Addr, port uint16) {
	if d.ports == nil {
		d.ports = map[netip.Addr]uint16{}
	}
	d.ports[addr] = port
	maps.DeleteFunc(d.ports, func(a netip.Addr, _ uint16) bool {
		return !slices.Contains(d.addrs, a) && !slices.Contains(d.literal, a)
	})
}

// reached returns the addresses and ports at which the API server was reached, without order.
func (d *apiDialer) reached() (all []netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for addr, port := range d.ports {
		all = append(all, netip.AddrPortFrom(addr, port))
	}
	return all
}

// maxAPIAddrs is how many addresses are kept: the most recent ones, which are last in the list.
const maxAPIAddrs = 16

func (d *apiDialer) all() []netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Concat(d.literal, d.addrs)
}

// apiAddrs returns the API server's address if the configured host is an IP address. As in client-go, the host is a URL, or a
// name or address with or without a port.
func apiAddrs(host string) []netip.Addr {
	u, err := url.Parse(host)
	if err != nil || u.Host == "" {
		u, err = url.Parse("https://" + host)
	}
	if err != nil {
		return nil
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		return []netip.Addr{a.Unmap()}
	}
	return nil
}
