// SPDX-License-Identifier: Apache-2.0

package meshmode

import (
	"net"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/netio/reflector"
)

// Asker asks the reflectors of peers, as reflector.Client describes it.
type Asker interface {
	Ask(peer netip.Addr) error
	Serve(device func() int, answered func(peer netip.Addr))
	Close() error
}

// OpenAsker returns an Asker that asks from an address, and reflectors at a port.
type OpenAsker func(from netip.Addr, port uint16) (Asker, error)

func openReflectorClient(from netip.Addr, port uint16) (Asker, error) {
	return reflector.NewClient(from, port)
}

// askers are the clients of the peers' reflectors, one for each IP version. The zero value has none.
type askers struct {
	from    []netip.Addr
	clients map[bool]Asker // by Is4
}

// open keeps a client for each of the node's addresses in the tunnel, the first of each IP version.
// An address that the interface does not have yet is tried again at the next call.
func (a *askers) open(p *Prover, addresses []netip.Addr) map[bool]Asker {
	if p.Port == 0 {
		return nil
	}
	if !slices.Equal(a.from, addresses) {
		a.close()
		a.from = addresses
	}
	if a.clients == nil {
		a.clients = map[bool]Asker{}
	}
	for _, from := range addresses {
		if a.clients[from.Is4()] != nil {
			continue
		}
		c, err := p.Open(from, p.Port)
		if err != nil {
			p.Log.Debug("opening a socket for datagrams to the peers' reflectors failed, retrying", "error", err)
			continue
		}
		a.clients[from.Is4()] = c
		go c.Serve(func() int { return indexOf(p.Tunnel) }, p.answered)
	}
	return a.clients
}

// close ends the clients.
func (a *askers) close() {
	for _, c := range a.clients {
		_ = c.Close() // of a UDP socket
	}
	a.from, a.clients = nil, nil
}

// indexOf returns the index of a network interface; 0: there is none.
func indexOf(name string) int {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return i.Index
}
