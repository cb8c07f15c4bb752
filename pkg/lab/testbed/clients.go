// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// addClients puts a host behind each side, if the Lab is to have them.
func (l *Lab) addClients() error {
	if !l.cfg.Clients {
		return nil
	}
	for i, s := range l.sides() {
		if err := l.addClient(s, byte(i)); err != nil {
			return fmt.Errorf("adding a host behind %s: %w", s.Host.Name(), err)
		}
	}
	return nil
}

// addClient connects a host to a side, which is its gateway. Its cable has the tunnel's MTU, so that nothing has to be fragmented.
func (l *Lab) addClient(s *Side, n byte) (err error) {
	s.gateway = [2]netip.Prefix{v4(10, 78, n, 1), v6(2+n, 1)}
	s.client = [2]netip.Prefix{v4(10, 78, n, 2), v6(2+n, 2)}
	if s.App, err = l.net.Host(fmt.Sprintf("client%d", n)); err != nil {
		return err
	}
	_, err = l.net.Cable(s.Host, s.App, netlab.CableConfig{
		Queues: l.cfg.Queues, MTU: tunnelMTU, AddrsA: s.gateway[:], AddrsB: s.client[:],
	})
	if err != nil {
		return err
	}
	return errors.Join(s.Host.Forward(),
		s.App.RouteVia(netip.PrefixFrom(netip.IPv4Unspecified(), 0), s.gateway[0].Addr()),
		s.App.RouteVia(netip.PrefixFrom(netip.IPv6Unspecified(), 0), s.gateway[1].Addr()))
}

// routeClients adds the routes at one side to the host behind the other: through the tunnel, or over the cable of a raw Lab.
func (l *Lab) routeClients(at, to *Side) error {
	if !l.cfg.Clients {
		return nil
	}
	var errs []error
	for i, p := range to.client {
		if l.Raw() {
			errs = append(errs, at.Host.RouteVia(p.Masked(), to.Cable[i].Addr()))
		} else {
			errs = append(errs, at.Host.RouteThrough(p.Masked(), at.Iface))
		}
	}
	return errors.Join(errs...)
}

// PeerConfig configures AddPeer.
type PeerConfig struct {
	// Name is the name of the peer's host.
	Name string
	// Near and Far are the addresses of the cable's ends, at A and at the peer.
	Near, Far netip.Prefix
	// BitsPerSecond is the rate of A's device towards the peer, and Queue that device's queue in bytes.
	BitsPerSecond uint64
	Queue         int
}

// AddPeer adds another peer of A, on a cable of its own, with a daemon of its own and a traffic server. In a raw Lab it is a host
// that is reached over the cable. Close removes it.
func (l *Lab) AddPeer(ctx context.Context, cfg PeerConfig) (*Side, error) {
	s, err := newSide(l.net, cfg.Name, byte(3+len(l.others)))
	if err != nil {
		return nil, err
	}
	l.others = append(l.others, s)
	s.Cable[0] = cfg.Far
	cable, err := l.net.Cable(l.A.Host, s.Host, netlab.CableConfig{
		Queues: l.cfg.Queues, AddrsA: []netip.Prefix{cfg.Near}, AddrsB: []netip.Prefix{cfg.Far},
	})
	if err != nil {
		return nil, err
	}
	s.CableDevice = cable.DeviceB
	if err := l.A.Host.LimitRate(cable.DeviceA, cfg.BitsPerSecond, cfg.Queue); err != nil {
		return nil, err
	}
	if !l.Raw() {
		if err := l.tunnelTo(ctx, s, cfg.Near.Addr()); err != nil {
			return nil, err
		}
	}
	if err := l.connect(ctx, s); err != nil {
		return nil, err
	}
	s.server, err = startServer(ctx, s.App, l.cfg.Traffic)
	return s, err
}

// tunnelTo starts the daemon of another peer of A, which it reaches at an address.
func (l *Lab) tunnelTo(ctx context.Context, s *Side, near netip.Addr) error {
	name := "rb" + l.net.Tag() + string(rune('a'+len(l.sides())-1))
	if err := s.start(ctx, l.cfg.Daemon, name); err != nil {
		return err
	}
	return errors.Join(l.A.setPeer(s, false, s.Cable[0].Addr()), s.setPeer(l.A, true, near),
		s.Host.SetUp(s.Iface, tunnelMTU, s.Tunnel[:]...))
}
