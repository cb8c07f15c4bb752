// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

const (
	tunnelMTU = 1420 // bytes; the cable's is 1500
	// DefaultPrefix begins the names of the namespaces.
	DefaultPrefix = "bench"
	// sessionLimit is how long the first packet through the tunnel may take: two handshake retries.
	sessionLimit = 30 * time.Second
	sessionProbe = 200 * time.Millisecond
)

// Config configures a Lab.
type Config struct {
	// Queues of the cable, both ways; 0 means 1.
	Queues int
	// Daemon serves both ends of the tunnel; nil leaves the Lab raw, with nothing but the cable.
	Daemon Daemon
	// Traffic is the command of the generator, to which "server" or "client" and their flags are added. Empty means
	// /proc/self/exe traffic, for which the calling program must be ropewalk.
	Traffic []string
	// Link, if not nil, is the path that the cable emulates. It has one queue.
	Link *netlab.Link
	// Ports, if not empty, are two devices of the calling thread's namespace with a cable between them. They take the place of the Lab's own cable
	// until it is closed.
	Ports [2]string
	// Clients puts a host behind each side, where traffic begins and ends. The sides forward it, and have no sockets of it.
	Clients bool
	// Prefix begins the names of the namespaces, as netlab.New's; empty means "bench".
	Prefix string
	// NullTunnel puts two TUNs that forward to each other in place of a tunnel. Daemon is nil then.
	NullTunnel bool
}

func (c *Config) complete() {
	c.Queues = max(c.Queues, 1)
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if len(c.Traffic) == 0 {
		c.Traffic = []string{"/proc/self/exe", "traffic"}
	}
}

// Lab is two hosts with a tunnel between them, configured, up, with a session established. One goroutine uses it.
type Lab struct {
	// A sends in every Measure, B receives, unless the Measure says otherwise.
	A, B *Side

	cfg        Config
	net        *netlab.Lab
	cable      *netlab.Cable
	others     []*Side     // peers of A besides B
	nullTunnel *nullTunnel // nil unless cfg.NullTunnel
}

// New makes a Lab, or nothing. The caller closes it. Errors wrap netlab.ErrPrivileges where that is the reason.
func New(ctx context.Context, cfg Config) (*Lab, error) {
	cfg.complete()
	lab, err := netlab.New(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	_ = uapi.DefaultDir.Sweep(socketGlob, socketGrace) // a socket that is left does not disturb
	l := &Lab{cfg: cfg, net: lab}
	if err := l.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("making a lab: %w", err), l.Close())
	}
	return l, nil
}

// Another makes a Lab of the same daemon with a different configuration.
func (l *Lab) Another(ctx context.Context, change func(*Config)) (*Lab, error) {
	cfg := l.cfg
	change(&cfg)
	return New(ctx, cfg)
}

func (l *Lab) build(ctx context.Context) (err error) {
	if l.A, err = newSide(l.net, "a", 1); err != nil {
		return err
	}
	if l.B, err = newSide(l.net, "b", 2); err != nil {
		return err
	}
	if err := l.connectHosts(); err != nil {
		return err
	}
	l.A.CableDevice, l.B.CableDevice = l.cable.DeviceA, l.cable.DeviceB
	if err := l.addClients(); err != nil {
		return err
	}
	switch {
	case l.cfg.NullTunnel:
		l.nullTunnel, err = newNullTunnel(l.A, l.B, l.cfg.Queues)
	case l.cfg.Daemon != nil:
		err = l.tunnel(ctx)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(l.routeClients(l.A, l.B), l.routeClients(l.B, l.A)); err != nil {
		return err
	}
	if err := l.connect(ctx, l.B); err != nil {
		return err
	}
	for _, s := range []*Side{l.A, l.B} {
		if s.server, err = startServer(ctx, s.App, l.cfg.Traffic); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) connectHosts() (err error) {
	c := netlab.CableConfig{Queues: l.cfg.Queues, AddrsA: l.A.Cable[:], AddrsB: l.B.Cable[:], Link: l.cfg.Link}
	if l.cfg.Ports == [2]string{} {
		l.cable, err = l.net.Cable(l.A.Host, l.B.Host, c)
		return err
	}
	here, err := l.net.Here()
	if err == nil {
		l.cable, err = l.net.ConnectPorts(here, l.A.Host, l.B.Host, l.cfg.Ports, c)
	}
	return err
}

// tunnel starts and configures both ends. Control sockets of all namespaces lie in one directory: the netlab's tag
// keeps two labs apart.
func (l *Lab) tunnel(ctx context.Context) error {
	for _, s := range []*Side{l.A, l.B} {
		name := "a"
		if s == l.B {
			name = "b"
		}
		if err := s.start(ctx, l.cfg.Daemon, "rb"+l.net.Tag()+name); err != nil {
			return err
		}
	}
	return errors.Join(l.A.configure(l.B), l.B.configure(l.A))
}

// connect pings a side from A until the first reply arrives, which requires a handshake.
func (l *Lab) connect(ctx context.Context, to *Side) error {
	silent := errors.New("no ping reply from the other end: the handshake did not complete")
	ctx, cancel := context.WithTimeoutCause(ctx, sessionLimit, silent)
	defer cancel()
	for {
		rtts, _, err := ping(ctx, l.A.App, l.Addrs(to)[0], time.Time{}, 1, sessionProbe)
		if err != nil {
			return err
		}
		if len(rtts) > 0 {
			return nil
		}
		if err := l.Err(); err != nil {
			return err
		}
	}
}

// Raw reports whether the Lab has no tunnel.
func (l *Lab) Raw() bool { return l.cfg.Daemon == nil }

// Addrs are the addresses by which one side reaches the other through the measured path: the
// tunnel, or in a raw Lab the cable. With Clients they are the addresses of the hosts behind the
// sides. IPv4 first, IPv6 second.
func (l *Lab) Addrs(s *Side) [2]netip.Addr {
	p := s.Tunnel
	switch {
	case l.cfg.Clients:
		p = s.client
	case l.Raw() && l.nullTunnel == nil:
		p = s.Cable
	}
	return [2]netip.Addr{p[0].Addr(), p[1].Addr()}
}

// AddHost connects another host to A by a cable of its own, with as many queues. near and far are the addresses of its ends, at A
// and at the host. Close removes it.
func (l *Lab) AddHost(name string, near, far netip.Prefix) (*netlab.Host, error) {
	h, err := l.net.Host(name)
	if err != nil {
		return nil, err
	}
	_, err = l.net.Cable(l.A.Host, h, netlab.CableConfig{
		Queues: l.cfg.Queues, AddrsA: []netip.Prefix{near}, AddrsB: []netip.Prefix{far},
	})
	return h, err
}

// sides are the sides that exist.
func (l *Lab) sides() []*Side {
	return slices.DeleteFunc(append([]*Side{l.A, l.B}, l.others...), func(s *Side) bool { return s == nil })
}

// Dropped counts what a Link's queues have dropped, as netlab.Cable.Dropped.
func (l *Lab) Dropped() uint64 { return l.cable.Dropped() }

// DroppedAtTUN returns the number of packets that the kernel dropped because the queue of a tunnel interface was full; 0 in a raw Lab.
func (l *Lab) DroppedAtTUN() (n uint64, err error) {
	for _, s := range l.sides() {
		if s.Iface == "" {
			continue
		}
		dropped, err := s.Host.TxDropped(s.Iface)
		if err != nil {
			return 0, err
		}
		n += dropped
	}
	return n, nil
}

// Daemons are the processes of all ends; none in a raw Lab.
func (l *Lab) Daemons() []*Process {
	var all []*Process
	for _, s := range l.sides() {
		if s.Daemon != nil {
			all = append(all, s.Daemon)
		}
	}
	return all
}

func (l *Lab) pids() (pids []int) {
	for _, d := range l.Daemons() {
		pids = append(pids, d.PIDs()...)
	}
	return pids
}

// Err reports daemons that exited unexpectedly; nil while both run.
func (l *Lab) Err() error {
	var errs []error
	for _, d := range l.Daemons() {
		errs = append(errs, d.Err())
	}
	return errors.Join(errs...)
}

// Close stops the daemons and removes everything that the Lab created. A daemon's failed exit is
// also an error.
func (l *Lab) Close() error {
	var errs []error
	for _, s := range l.sides() {
		errs = append(errs, s.stop())
	}
	if l.nullTunnel != nil {
		errs = append(errs, l.nullTunnel.close())
	}
	return errors.Join(append(errs, l.net.Close())...)
}
