// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/bench"
	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/netlab"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/traffic"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

const (
	demoPort      = 51820
	demoReady     = 10 * time.Second
	demoReadyPoll = 10 * time.Millisecond
)

// demoPlace is what tells the hosts apart: IPv4 first, IPv6 second.
type demoPlace struct {
	name          string
	cable, tunnel [2]netip.Prefix
}

func newDemoPlace(name string, n byte) demoPlace {
	v6 := func(net byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 7: net, 15: n}), 64)
	}
	v4 := func(a, b, c byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b, c, n}), 24) }
	return demoPlace{
		name:   name,
		cable:  [2]netip.Prefix{v4(192, 168, 77), v6(0)},
		tunnel: [2]netip.Prefix{v4(10, 77, 0), v6(1)},
	}
}

// demoSide is one host and its end of the tunnel.
type demoSide struct {
	demoPlace
	host   *netlab.Host
	iface  string
	key    noise.PrivateKey
	daemon *bench.Process // nil until started
}

func newDemoSide(lab *netlab.Lab, place demoPlace) (*demoSide, error) {
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key for %s: %w", place.name, err)
	}
	host, err := lab.Host(place.name)
	if err != nil {
		return nil, err
	}
	// The control sockets of all namespaces lie in one directory: the lab's tag keeps two demos apart.
	return &demoSide{demoPlace: place, host: host, key: key, iface: "rw" + lab.Tag() + place.name[:1]}, nil
}

// start runs the daemon and returns when it answers. Should it die later, it calls died.
func (s *demoSide) start(ctx context.Context, argv []string, died context.CancelCauseFunc) (err error) {
	if s.daemon, err = bench.Command(argv...)(ctx, s.host, s.iface); err != nil {
		return fmt.Errorf("on %s: %w", s.name, err)
	}
	go func() {
		<-s.daemon.Done()
		if err := s.daemon.Err(); err != nil {
			died(fmt.Errorf("the daemon on %s: %w", s.name, err))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, demoReady)
	defer cancel()
	tick := time.NewTicker(demoReadyPoll)
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
			return fmt.Errorf("waiting for the daemon on %s: %w%s", s.name, err, s.daemon.LastWords())
		}
	}
}

func (s *demoSide) status() (config.Status, error) {
	c, err := uapi.Dial(s.iface)
	if err != nil {
		return config.Status{}, err
	}
	defer c.Close()
	return c.Status()
}

// setUp configures the tunnel to peer and brings the interface up.
func (s *demoSide) setUp(peer *demoSide) error {
	if err := s.configure(peer); err != nil {
		return err
	}
	return s.host.SetUp(s.iface, 0, s.tunnel[:]...)
}

// configure makes peer the only peer, on the cable's IPv4, with which there is no session yet.
func (s *demoSide) configure(peer *demoSide) error {
	c, err := uapi.Dial(s.iface)
	if err != nil {
		return err
	}
	defer c.Close()
	port := uint16(demoPort)
	var allowed []config.AllowedIP
	for _, p := range peer.tunnel {
		allowed = append(allowed, config.AllowedIP{Prefix: netip.PrefixFrom(p.Addr(), p.Addr().BitLen())})
	}
	return c.Configure(config.Device{
		PrivateKey: &s.key, ListenPort: &port, ReplacePeers: true,
		Peers: []config.Peer{{
			PublicKey:         peer.key.Public(),
			Endpoint:          &config.Endpoint{AddrPort: netip.AddrPortFrom(peer.cable[0].Addr(), demoPort)},
			ReplaceAllowedIPs: true, AllowedIPs: allowed,
		}},
	})
}

// stats asks the daemon for its figures; nil without an error means that it offers none.
func (s *demoSide) stats() (*demoStats, error) {
	c, err := uapi.Dial(s.iface)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var st demoStats
	if c.Stats(&st) != nil {
		// Another implementation, which does not know the request. One that has died is noticed by stop.
		return nil, nil
	}
	return &st, nil
}

// stop ends the daemon as its user would, and returns an error if it was dead already or does not follow.
func (s *demoSide) stop() error {
	if err := s.daemon.Stop(); err != nil {
		return fmt.Errorf("the daemon on %s: %w", s.name, err)
	}
	return nil
}

// kill ends the daemon if it still runs, and removes the control socket that it may have left.
func (s *demoSide) kill() {
	if s.daemon == nil {
		return
	}
	_ = s.daemon.Stop()
	_ = os.Remove(filepath.Join(string(uapi.DefaultDir), s.iface+".sock")) // gone already, unless it died
}

// removeStaleSockets removes the control sockets of demos that were killed, whose daemons the lab's sweep killed in
// turn. A young one may belong to a daemon that is about to listen.
func removeStaleSockets(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, "rw?????[lr].sock"))
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
}

// demoServers are the receivers on the right host.
type demoServers struct {
	v4, v6 *traffic.Server
	stop   func()
}

// serve listens on the right host's tunnel addresses.
func (d *demo) serve(ctx context.Context) (demoServers, error) {
	ctx, cancel := context.WithCancel(ctx)
	var listening [2]*traffic.Server
	var done []chan struct{}
	stop := func() {
		cancel()
		for _, c := range done {
			<-c
		}
	}
	for i, p := range d.right.tunnel {
		s, err := traffic.Listen(traffic.ServerConfig{Addr: netip.AddrPortFrom(p.Addr(), 0), Within: d.right.host.Do})
		if err != nil {
			stop()
			return demoServers{}, err
		}
		listening[i] = s
		ended := make(chan struct{})
		done = append(done, ended)
		go func() {
			defer close(ended)
			// A server that fails makes the run that uses it fail.
			_ = s.Serve(ctx)
		}()
	}
	return demoServers{v4: listening[0], v6: listening[1], stop: stop}, nil
}
