// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

const (
	tunnelPort   = 51820
	readyTimeout = 10 * time.Second
	readyPoll    = 10 * time.Millisecond
)

// HostAddresses are the name and the addresses of a host: IPv4 first, IPv6 second.
type HostAddresses struct {
	Name          string
	Cable, Tunnel [2]netip.Prefix
}

// NewHostAddresses returns the addresses of the n-th host.
func NewHostAddresses(name string, n byte) HostAddresses {
	v6 := func(net byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 7: net, 15: n}), 64)
	}
	v4 := func(a, b, c byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b, c, n}), 24) }
	return HostAddresses{
		Name:   name,
		Cable:  [2]netip.Prefix{v4(192, 168, 77), v6(0)},
		Tunnel: [2]netip.Prefix{v4(10, 77, 0), v6(1)},
	}
}

// Side is one host and its end of the tunnel.
type Side struct {
	HostAddresses
	Host      *netlab.Host
	Interface string
	Key       noise.PrivateKey
	daemon    *testbed.Process // nil until started
}

// NewSide adds a host to a lab, and creates its key. It starts nothing.
func NewSide(lab *netlab.Lab, at HostAddresses) (*Side, error) {
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating a key for %s: %w", at.Name, err)
	}
	host, err := lab.Host(at.Name)
	if err != nil {
		return nil, err
	}
	return &Side{HostAddresses: at, Host: host, Key: key, Interface: interfaceName(lab.Tag(), at.Name)}, nil
}

// interfaceName returns the interface's name. It contains the lab's tag, because the control sockets of all network namespaces are
// in one directory.
func interfaceName(tag, place string) string { return "rw" + tag + place[:1] }

// socketGlob matches the control sockets of all demos.
const socketGlob = "rw?????[lr].sock"

// Start starts the daemon and waits until it answers. If the daemon ends later, Start's goroutine calls died.
func (s *Side) Start(ctx context.Context, argv []string, died context.CancelCauseFunc) (err error) {
	if s.daemon, err = testbed.Command(argv...)(ctx, s.Host, s.Interface); err != nil {
		return fmt.Errorf("on %s: %w", s.Name, err)
	}
	go func() {
		<-s.daemon.Done()
		if err := s.daemon.Err(); err != nil {
			died(fmt.Errorf("the daemon on %s: %w", s.Name, err))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		_, err := s.status()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return cause
			}
			return fmt.Errorf("waiting for the daemon on %s: %w%s", s.Name, err, s.daemon.LastWords())
		}
	}
}

func (s *Side) status() (config.Status, error) {
	c, err := uapi.Dial(s.Interface)
	if err != nil {
		return config.Status{}, err
	}
	defer c.Close()
	return c.Status()
}

// SetUp configures the tunnel to peer and brings the interface up.
func (s *Side) SetUp(peer *Side) error {
	if err := s.configure(peer); err != nil {
		return err
	}
	return s.Host.SetUp(s.Interface, 0, s.Tunnel[:]...)
}

// configure sets peer as the only peer, with its IPv4 address on the cable, and removes any session with it.
func (s *Side) configure(peer *Side) error {
	c, err := uapi.Dial(s.Interface)
	if err != nil {
		return err
	}
	defer c.Close()
	port := uint16(tunnelPort)
	var allowed []config.AllowedIP
	for _, p := range peer.Tunnel {
		allowed = append(allowed, config.AllowedIP{Prefix: netip.PrefixFrom(p.Addr(), p.Addr().BitLen())})
	}
	return c.Configure(config.Device{
		PrivateKey: &s.Key, ListenPort: &port, ReplacePeers: true,
		Peers: []config.Peer{{
			PublicKey:         peer.Key.Public(),
			Endpoint:          &config.Endpoint{AddrPort: netip.AddrPortFrom(peer.Cable[0].Addr(), tunnelPort)},
			ReplaceAllowedIPs: true, AllowedIPs: allowed,
		}},
	})
}

// stats returns the daemon's statistics, or nil without an error if it has none.
func (s *Side) stats() (*Stats, error) {
	c, err := uapi.Dial(s.Interface)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var st Stats
	if c.Stats(&st) != nil {
		// Another implementation does not know the request. If the daemon has ended, stop reports it.
		return nil, nil
	}
	return &st, nil
}

// stop stops the daemon with SIGTERM. It returns an error if the daemon had ended already or does not end.
func (s *Side) stop() error {
	if err := s.daemon.Stop(); err != nil {
		return fmt.Errorf("the daemon on %s: %w", s.Name, err)
	}
	return nil
}

// Kill ends the daemon if it still runs, and removes its control socket.
func (s *Side) Kill() {
	if s.daemon == nil {
		return
	}
	_ = s.daemon.Stop()
	_ = os.Remove(filepath.Join(string(uapi.DefaultDir), s.Interface+".sock")) // exists only if the daemon was killed
}

// servers are the traffic servers on the right host.
type servers struct {
	v4, v6 *traffic.Server
	stop   func()
}

// serve starts them on the right host's tunnel addresses.
func (d *demo) serve(ctx context.Context) (servers, error) {
	ctx, cancel := context.WithCancel(ctx)
	var listening [2]*traffic.Server
	var done []chan struct{}
	stop := func() {
		cancel()
		for _, c := range done {
			<-c
		}
	}
	for i, p := range d.right.Tunnel {
		s, err := traffic.Listen(traffic.ServerConfig{Addr: netip.AddrPortFrom(p.Addr(), 0), InNamespace: d.right.Host.Do})
		if err != nil {
			stop()
			return servers{}, err
		}
		listening[i] = s
		ended := make(chan struct{})
		done = append(done, ended)
		go func() {
			defer close(ended)
			// If the server fails, the run that uses it fails too.
			_ = s.Serve(ctx)
		}()
	}
	return servers{v4: listening[0], v6: listening[1], stop: stop}, nil
}
