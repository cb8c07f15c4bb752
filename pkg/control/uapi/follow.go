// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Follower follows messages through other tunnels of this host, by their control sockets. It reads each tunnel once, so it is for one moment. It is
// for one goroutine.
type Follower struct {
	dir   Dir
	links []hostnet.Link
	read  map[string]config.Status // also of daemons that do not answer
}

// Follow returns a Follower. Without links it follows nothing.
func (d Dir) Follow() *Follower {
	links, _ := hostnet.Links()
	return &Follower{d, links, map[string]config.Status{}}
}

// maxHops bounds the tunnels through which messages are followed.
const maxHops = 8

// Loops reports whether datagrams that enter the tunnel with a link's index for an address come back to the interface own, whose messages they are.
func (f *Follower) Loops(own, link int, to netip.Addr) bool {
	for range maxHops {
		if link == own {
			return true
		}
		p, st, ok := f.Next(link, to)
		if !ok {
			return false
		}
		to = p.AddrPort.Addr().Unmap()
		links, err := hostnet.DatagramLinks(netip.AddrPortFrom(netip.Addr{}, st.ListenPort), netip.AddrPortFrom(to, p.AddrPort.Port()), p.Scope, st.FwMark)
		if err != nil || len(links) == 0 {
			return false
		}
		link = links[0]
	}
	return false
}

// Next returns the endpoint to which the tunnel with a link's index sends packets for an address, and the tunnel's status. It knows none of tunnels
// without a control socket.
func (f *Follower) Next(link int, to netip.Addr) (endpoint config.Endpoint, st config.Status, ok bool) {
	n := slices.IndexFunc(f.links, func(l hostnet.Link) bool { return l.Index == link && l.Tunnel })
	if n < 0 {
		return endpoint, st, false
	}
	name := f.links[n].Name
	if st, ok = f.read[name]; !ok {
		st = f.dir.statusWithin(name, time.Second)
		f.read[name] = st
	}
	bits := -1
	for i := range st.Peers {
		for _, p := range st.Peers[i].AllowedIPs {
			if p.Contains(to) && p.Bits() > bits {
				endpoint, bits = st.Peers[i].Endpoint, p.Bits()
			}
		}
	}
	return endpoint, st, endpoint.AddrPort.IsValid()
}

// statusWithin returns an empty status of a daemon that does not answer in time.
func (d Dir) statusWithin(name string, limit time.Duration) config.Status {
	c, err := d.Dial(name)
	if err != nil {
		return config.Status{}
	}
	defer c.Close()
	timeout := time.AfterFunc(limit, func() { _ = c.Close() })
	defer timeout.Stop()
	st, err := c.Status()
	if err != nil {
		return config.Status{}
	}
	return st
}
