// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

const (
	// ListenPort is the UDP port of both daemons.
	ListenPort = 51820
	// ReadyLimit is how long the testbed waits for a daemon.
	ReadyLimit = 30 * time.Second
	readyPoll  = time.Millisecond
)

// Side is one end of a Lab: a host, its end of the cable and, unless the Lab is raw, its end of the tunnel. Index 0 of
// addresses is IPv4, 1 is IPv6.
type Side struct {
	Host *netlab.Host
	// App is the host where traffic begins and ends: Host, or in a Lab with Clients the one behind it.
	App *netlab.Host
	// Iface is the tunnel interface, empty in a raw Lab; Daemon is the process that serves it.
	Iface  string
	Daemon *Process
	// Cable and Tunnel are the addresses outside and inside.
	Cable, Tunnel [2]netip.Prefix
	// CableDevice is the end of the cable between the two hosts.
	CableDevice string

	key    noise.PrivateKey
	server *server
	// gateway and client are the addresses of the side and of the host behind it, on the cable between them,
	// if there is one.
	gateway, client [2]netip.Prefix
}

func newSide(lab *netlab.Lab, name string, n byte) (*Side, error) {
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	host, err := lab.Host(name)
	if err != nil {
		return nil, err
	}
	return &Side{
		Host: host, App: host, key: key,
		Cable:  [2]netip.Prefix{v4(192, 168, 77, n), v6(0, n)},
		Tunnel: [2]netip.Prefix{v4(10, 77, 0, n), v6(1, n)},
	}, nil
}

func v4(a, b, c, n byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b, c, n}), 24)
}

func v6(net, n byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 7: net, 15: n}), 64)
}

// PublicKey is the public key of the side's end of the tunnel.
func (s *Side) PublicKey() noise.PublicKey { return s.key.Public() }

// start starts the daemon and returns when its socket and its interface are there.
func (s *Side) start(ctx context.Context, daemon Daemon, iface string) (err error) {
	s.Iface = iface
	if s.Daemon, err = daemon(ctx, s.Host, iface); err != nil {
		return err
	}
	return s.Await(ctx, func() error {
		c, err := uapi.Dial(iface)
		if err != nil {
			return err
		}
		defer c.Close()
		return s.Host.Do(func() error {
			_, err := net.InterfaceByName(iface)
			return err
		})
	})
}

// Await repeats f until it succeeds. It fails when the daemon exits, ctx is done or ReadyLimit is over.
func (s *Side) Await(ctx context.Context, f func() error) error {
	err := poll(ctx, s.Daemon.Done(), f)
	switch {
	case errors.Is(err, errEnded):
		return s.Daemon.Err()
	case err != nil:
		return fmt.Errorf("waiting for the daemon of %s: %w%s", s.Iface, err, s.Daemon.LastWords())
	}
	return nil
}

// errEnded is poll's answer when there is nothing left to wait for.
var errEnded = errors.New("it has ended")

// poll repeats f until it succeeds, what is waited for has ended (nil: it does not) or the time is over.
func poll(ctx context.Context, ended <-chan struct{}, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, ReadyLimit)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ended:
			return errEnded
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// configure makes peer the only peer, reached over the cable's IPv4.
func (s *Side) configure(peer *Side) error {
	if err := s.setPeer(peer, true, peer.Cable[0].Addr()); err != nil {
		return err
	}
	return s.Host.SetUp(s.Iface, tunnelMTU, s.Tunnel[:]...)
}

// setPeer adds a peer, reached by an address, in place of all others if only is set.
func (s *Side) setPeer(peer *Side, only bool, at netip.Addr) error {
	c, err := uapi.Dial(s.Iface)
	if err != nil {
		return err
	}
	defer c.Close()
	port := uint16(ListenPort)
	var allowed []config.AllowedIP
	for _, p := range peer.Tunnel {
		allowed = append(allowed, config.AllowedIP{Prefix: netip.PrefixFrom(p.Addr(), p.Addr().BitLen())})
	}
	if peer.App != peer.Host {
		for _, p := range peer.client {
			allowed = append(allowed, config.AllowedIP{Prefix: p.Masked()})
		}
	}
	err = c.Configure(config.Device{
		PrivateKey: &s.key, ListenPort: &port, ReplacePeers: only,
		Peers: []config.Peer{{
			PublicKey:         peer.key.Public(),
			Endpoint:          &config.Endpoint{AddrPort: netip.AddrPortFrom(at, ListenPort)},
			ReplaceAllowedIPs: true, AllowedIPs: allowed,
		}},
	})
	if err != nil {
		return fmt.Errorf("configuring %s: %w", s.Iface, err)
	}
	return nil
}

// stop ends the server and the daemon, and removes the control socket should one be left.
func (s *Side) stop() error {
	var errs []error
	if s.server != nil {
		errs = append(errs, s.server.stop())
	}
	if s.Daemon != nil {
		errs = append(errs, s.Daemon.Stop())
		err := os.Remove(filepath.Join(string(uapi.DefaultDir), s.Iface+".sock"))
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const (
	// socketGlob matches the control sockets of all labs: see New for the names.
	socketGlob = "rb?????[a-z].sock"
	// socketGrace is how old one must be to be swept: another lab's daemon may be about to listen.
	socketGrace = time.Minute
)
