// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"
)

// apiDialer are the addresses at which the API server was reached, whatever its name: nothing for them goes into a tunnel that
// needs the API to come up.
type apiDialer struct {
	literal   []netip.Addr // without a name
	next      func(ctx context.Context, network, address string) (net.Conn, error)
	onNewAddr func() // is called when there is one more

	mu    sync.Mutex
	addrs []netip.Addr
}

// dialTimeout and keepAlive are client-go's own.
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

func (d *apiDialer) record(at net.Addr) {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	d.mu.Lock()
	i, known := slices.Index(d.addrs, addr), slices.Contains(d.literal, addr)
	fresh := i < 0 && !known
	if i >= 0 {
		d.addrs = slices.Delete(d.addrs, i, i+1)
	}
	if !known {
		d.addrs = append(d.addrs, addr)
		d.addrs = d.addrs[max(0, len(d.addrs)-maxAPIAddrs):]
	}
	d.mu.Unlock()
	if fresh {
		d.onNewAddr()
	}
}

// maxAPIAddrs is how many addresses count: those that were reached last, which come last.
const maxAPIAddrs = 16

func (d *apiDialer) all() []netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Concat(d.literal, d.addrs)
}

// apiAddrs are the API server's addresses, if its host names any. As to client-go, that is a URL, or a host with or without a port.
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
