// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Port is where the traffic servers listen, on TCP. UDP of the traffic has other ports.
const Port = 5210

// TunnelConfig configures Open.
type TunnelConfig struct {
	// A and B are the hosts. A is near: it begins.
	A, B *Client
	// Addrs are their addresses on the underlay, UDP the port of both ends.
	Addrs [2]netip.Addr
	UDP   uint16
	MTU   int
	// Daemon returns the command of the implementation at a host, without the interface's name; nil for none. Kernel means the
	// in-kernel WireGuard. Without both the path is that between the hosts, without a tunnel.
	Daemon func(c *Client) []string
	Kernel bool
	// Spread puts `ropewalk spread attach` in front of the tunnel, on these devices of A and B; empty for none.
	Spread [2]string
	// Network, if valid, is an IPv4 network behind A: the traffic there is forwarded, as testbed.EndConfig describes.
	Network netip.Prefix
	// OnCPUs are the CPUs of A that processes are limited to, in cpuset(7)'s list format; empty for all.
	OnCPUs string
}

// Tunnel is a testbed.Path between two hosts.
type Tunnel struct {
	cfg   TunnelConfig
	inner [2]netip.Addr // of A and B
	// Busy is how many processors of A and B worked during the last Send.
	Busy [2]float64
}

// connectLimit is how long the first packet may take: two retries of a handshake.
const connectLimit = 30 * time.Second

// Open starts both ends, and returns when A reaches B. The caller closes it.
func Open(ctx context.Context, cfg TunnelConfig) (*Tunnel, error) {
	t := &Tunnel{cfg: cfg, inner: [2]netip.Addr{testbed.NearAddr(), testbed.FarAddr()}}
	switch {
	case cfg.Daemon == nil && !cfg.Kernel:
		t.inner, t.cfg.Network = cfg.Addrs, netip.Prefix{}
	case cfg.Network.IsValid():
		t.inner[0] = testbed.NetworkAddr(cfg.Network)
	}
	err := t.open(ctx)
	if err == nil {
		err = t.connect(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Tunnel) open(ctx context.Context) error {
	var secret noise.PresharedKey
	_, _ = rand.Read(secret[:])
	for i, c := range t.hosts() {
		args := OpenArgs{
			Kernel: t.cfg.Kernel, Traffic: t.traffic(c), Secret: secret.Base64(), Port: t.cfg.UDP, MTU: t.cfg.MTU, Network: t.cfg.Network,
			Far: netip.AddrPortFrom(t.cfg.Addrs[1], t.cfg.UDP),
		}
		if c == t.cfg.B {
			args.Far, args.Near = netip.AddrPortFrom(netip.IPv6Unspecified(), t.cfg.UDP), netip.AddrPortFrom(t.cfg.Addrs[0], t.cfg.UDP)
		}
		if t.cfg.Daemon != nil {
			args.Daemon = t.limited(c, t.cfg.Daemon(c))
		}
		if device := t.cfg.Spread[i]; device != "" {
			args.spread(c.Path("ropewalk"), device, netip.AddrPortFrom(t.cfg.Addrs[1-i], t.cfg.UDP))
		}
		if err := c.Call(ctx, "Open", args, nil); err != nil {
			return err
		}
	}
	return nil
}

// connect pings from A until B answers.
func (t *Tunnel) connect(ctx context.Context) error {
	for end := time.Now().Add(connectLimit); time.Now().Before(end); {
		rtts, _, err := t.Ping(ctx, time.Time{}, 1, time.Second)
		if err != nil || len(rtts) > 0 {
			return err
		}
	}
	return fmt.Errorf("no answer to pings from %v to %v in %v", t.inner[0], t.inner[1], connectLimit)
}

func (t *Tunnel) hosts() [2]*Client { return [2]*Client{t.cfg.A, t.cfg.B} }

func (t *Tunnel) traffic(c *Client) []string {
	return t.limited(c, []string{c.Path("ropewalk"), "traffic"})
}

// limited puts the limit to some CPUs in front of a command at A.
func (t *Tunnel) limited(c *Client, argv []string) []string {
	if c != t.cfg.A || t.cfg.OnCPUs == "" {
		return argv
	}
	return append([]string{c.Path(Agent), "on", t.cfg.OnCPUs}, argv...)
}

// Send implements testbed.Path.
func (t *Tunnel) Send(ctx context.Context, f testbed.Flow) (testbed.Outcome, error) {
	from, to := 0, 1
	if f.Reverse {
		from, to = 1, 0
	}
	f.Server = netip.AddrPortFrom(t.inner[to], Port)
	begin := time.Now()
	before, err := t.busy(ctx)
	if err != nil {
		return testbed.Outcome{}, err
	}
	c := t.hosts()[from]
	res, err := testbed.Client(t.traffic(c), f.Config, func(argv []string) ([]byte, error) { return t.run(ctx, c, argv) })
	after, err2 := t.busy(ctx)
	if err := errors.Join(err, err2); err != nil {
		return testbed.Outcome{}, err
	}
	o := testbed.Outcome{Result: res}
	if f.Kind != traffic.Ping {
		took := time.Since(begin) // more than the traffic: a host cannot have been busier than it can
		for i := range t.Busy {
			t.Busy[i] = (after[i] - before[i]).Seconds() / took.Seconds()
			o.Cores += t.Busy[i]
		}
	}
	return o, nil
}

func (t *Tunnel) busy(ctx context.Context) (busy [2]time.Duration, err error) {
	for i, c := range t.hosts() {
		err = errors.Join(err, c.Call(ctx, "Busy", None{}, &busy[i]))
	}
	return busy, err
}

func (t *Tunnel) run(ctx context.Context, c *Client, argv []string) ([]byte, error) {
	var r RunReply
	err := c.Call(ctx, "Run", argv, &r)
	return r.Out, err
}

// Ping implements testbed.Path.
func (t *Tunnel) Ping(ctx context.Context, end time.Time, count int, interval time.Duration) ([]time.Duration, int, error) {
	args := PingArgs{To: t.inner[1], Count: count, Interval: interval}
	if !end.IsZero() {
		args.For = max(time.Until(end), time.Nanosecond)
	}
	var r PingReply
	err := t.cfg.A.Call(ctx, "Ping", args, &r)
	return r.RTTs, r.Sent, err
}

// Run runs a copied program at A, and returns its output.
func (t *Tunnel) Run(ctx context.Context, program string, args ...string) ([]byte, error) {
	c := t.cfg.A
	return t.run(ctx, c, t.limited(c, append([]string{c.Path(program)}, args...)))
}

// Listen starts a server of a copied program at B. stop does nothing: Close stops it.
func (t *Tunnel) Listen(ctx context.Context, program string, args ...string) (stop func() error, err error) {
	c := t.cfg.B
	err = c.Call(ctx, "Listen", append([]string{c.Path(program)}, args...), nil)
	return func() error { return nil }, err
}

// To is the address of B inside the tunnel.
func (t *Tunnel) To() netip.Addr { return t.inner[1] }

// Planned reports whether A uses a port plan of B.
func (t *Tunnel) Planned(ctx context.Context) (planned bool, err error) {
	err = t.cfg.A.Call(ctx, "Planned", None{}, &planned)
	return planned, err
}

// Close ends both ends.
func (t *Tunnel) Close() error {
	var errs []error
	for _, c := range t.hosts() {
		ctx, cancel := context.WithTimeout(context.Background(), endLimit)
		errs = append(errs, c.Call(ctx, "Close", None{}, nil))
		cancel()
	}
	return errors.Join(errs...)
}

// Reach checks that UDP from A and B arrives at the other one's address and port.
func Reach(ctx context.Context, a, b *Client, addrs [2]netip.Addr, port uint16) error {
	var errs []error
	for i, c := range [2]*Client{a, b} {
		from, to := netip.AddrPortFrom(addrs[i], 0), netip.AddrPortFrom(addrs[1-i], port)
		other := [2]*Client{b, a}[i]
		err := other.Call(ctx, "Echo", to, nil)
		if err == nil {
			err = c.Call(ctx, "Probe", ProbeArgs{From: from, To: to, Size: probeSize}, nil)
			err = errors.Join(err, other.Call(ctx, "Close", None{}, nil))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sending UDP from %v to %v: %w", addrs[i], to, err))
		}
	}
	return errors.Join(errs...)
}

// probeSize is a datagram that fits all paths.
const probeSize = 64
