// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Follower follows messages through other tunnels of this host, by their control sockets. It reads each tunnel once, so it is for one moment. It is
// for one goroutine.
type Follower struct {
	dir      Dir
	links    []hostnet.Link
	linksErr error
	read     map[string]answer
}

// answer is a daemon's status, or why there is none.
type answer struct {
	status config.Status
	err    error
}

// Follow returns a Follower.
func (d Dir) Follow() *Follower {
	links, err := hostnet.Links()
	return &Follower{d, links, err, map[string]answer{}}
}

// maxHops bounds the tunnels through which messages are followed.
const maxHops = 8

// Loops reports whether datagrams that enter the tunnel with a link's index for an address come back to the interface own, whose messages they are.
// An error means that it is unknown: IsNotRunning for a tunnel without a daemon that ropewalk can ask, IsUnresponsive for a daemon that does not answer.
func (f *Follower) Loops(own, link int, to netip.Addr) (bool, error) {
	for range maxHops {
		if link == own {
			return true, nil
		}
		p, st, err := f.Next(link, to)
		if err != nil || !p.AddrPort.IsValid() {
			return false, err
		}
		to = p.AddrPort.Addr().Unmap()
		links, err := hostnet.DatagramLinks(netip.AddrPortFrom(netip.Addr{}, st.ListenPort), netip.AddrPortFrom(to, p.AddrPort.Port()), p.Scope, st.FwMark)
		if errors.Is(err, hostnet.ErrNoRoute) {
			err = nil
		}
		if err != nil || len(links) == 0 {
			return false, err
		}
		link = links[0]
	}
	return false, nil
}

// Next returns the endpoint to which the tunnel with a link's index sends packets for an address,
// and the tunnel's status. The endpoint is invalid if there is none, or the link is no tunnel.
// Errors are as in Loops.
func (f *Follower) Next(link int, to netip.Addr) (endpoint config.Endpoint, st config.Status, err error) {
	n := slices.IndexFunc(f.links, func(l hostnet.Link) bool { return l.Index == link && l.Tunnel })
	if n < 0 {
		return endpoint, st, f.linksErr
	}
	name := f.links[n].Name
	known, ok := f.read[name]
	if !ok {
		known.status, known.err = f.dir.statusWithin(name, time.Second)
		f.read[name] = known
	}
	st, bits := known.status, -1
	for i := range st.Peers {
		for _, p := range st.Peers[i].AllowedIPs {
			if p.Contains(to) && p.Bits() > bits {
				endpoint, bits = st.Peers[i].Endpoint, p.Bits()
			}
		}
	}
	return endpoint, st, known.err
}

// statusWithin returns os.ErrDeadlineExceeded for a daemon that does not answer in time.
func (d Dir) statusWithin(name string, limit time.Duration) (config.Status, error) {
	c, err := d.Dial(name)
	if err != nil {
		return config.Status{}, err
	}
	defer c.Close()
	timeout := time.AfterFunc(limit, func() { _ = c.Close() })
	st, err := c.Status()
	if !timeout.Stop() && err != nil {
		err = os.ErrDeadlineExceeded
	}
	return st, err
}
