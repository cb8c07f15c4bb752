// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Host has the requests that an agent answers, as net/rpc wants them. Requests may run at the same time, but for Open and Close.
type Host struct{ a *agent }

// None stands for no arguments, or no answer.
type None struct{}

// Alive keeps the agent from ending.
func (h *Host) Alive(None, *None) error {
	h.a.asked()
	return nil
}

// Set changes settings until the end of the agent.
func (h *Host) Set(list []Setting, _ *None) error { return h.a.settings.set(list) }

// OpenArgs describe one end of a tunnel.
type OpenArgs struct {
	// Daemon is the command of the implementation, without the interface's name. Kernel means the in-kernel WireGuard. Without both
	// there is no tunnel.
	Daemon []string
	Kernel bool
	// The other fields are as in testbed.EndConfig. Secret is in base64.
	Traffic []string
	Secret  string
	Port    uint16
	Far     netip.AddrPort
	Near    netip.AddrPort
	MTU     int
	Network netip.Prefix
	// Attach and Detach are commands that put spread in front of the tunnel, and end that; empty for none.
	Attach, Detach []string
}

// spread puts spread in front of the tunnel. The peer has the tunnel's port at both ends.
func (o *OpenArgs) spread(ropewalk, device string, peer netip.AddrPort) {
	port := strconv.Itoa(int(o.Port))
	// The interface is in another namespace than its sockets, which attach does not look for then.
	o.Attach = []string{ropewalk, "spread", "attach", device, "--port", port, "--peer", peer.String(), "--any-socket"}
	o.Detach = []string{ropewalk, "spread", "detach", "--port", port}
}

// detachLimit is how long it may take to detach spread: the end of the agent waits for it.
const detachLimit = 15 * time.Second

// Open starts an end of a tunnel. There is one at a time.
func (h *Host) Open(args OpenArgs, _ *None) error {
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	if err := h.a.ctx.Err(); err != nil {
		return err
	}
	if h.a.end != nil {
		return errors.New("starting one end of a tunnel: there is one already")
	}
	secret, err := noise.ParseBase64[noise.PresharedKey](args.Secret)
	if err != nil {
		return fmt.Errorf("reading the secret of both hosts: %w", err)
	}
	c := testbed.EndConfig{Prefix: prefix, Traffic: args.Traffic, Secret: secret, Port: args.Port, Far: args.Far, Near: args.Near, MTU: args.MTU, Network: args.Network}
	switch {
	case args.Kernel:
		c.Kernel = configureKernel
	case len(args.Daemon) > 0:
		c.Daemon = testbed.Command(args.Daemon...)
	}
	if h.a.end, err = testbed.OpenEnd(h.a.ctx, c); err != nil || len(args.Attach) == 0 {
		return err
	}
	h.a.attached = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.a.ctx), detachLimit)
		defer cancel()
		return command(ctx, args.Detach)
	}
	return command(h.a.ctx, args.Attach)
}

func command(ctx context.Context, argv []string) error {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("running %v: %w: %s", argv, err, out)
	}
	return nil
}

// Close ends what Open, Listen and Echo have started.
func (h *Host) Close(None, *None) error {
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	return h.a.stop()
}

var errNoEnd = errors.New("no end of a tunnel is open")

// current returns the end.
func (a *agent) current() (*testbed.End, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end == nil {
		return nil, errNoEnd
	}
	return a.end, a.end.Err()
}

// RunReply has the standard output of a program.
type RunReply struct{ Out []byte }

// Run runs a program where the traffic begins.
func (h *Host) Run(argv []string, reply *RunReply) error {
	e, err := h.a.current()
	if err != nil {
		return err
	}
	reply.Out, _, err = testbed.RunProgram(h.a.ctx, e.Host(), argv)
	return errors.Join(e.Err(), err)
}

// Listen starts a server where the traffic ends, and returns when it listens. Close stops it.
func (h *Host) Listen(argv []string, _ *None) error {
	e, err := h.a.current()
	if err != nil {
		return err
	}
	p, err := testbed.StartListening(h.a.ctx, e.Host(), argv...)
	if err != nil {
		return err
	}
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	h.a.servers = append(h.a.servers, closer(p.Stop))
	return nil
}

type closer func() error

func (c closer) Close() error { return c() }

// PingArgs are the arguments of testbed.End.Ping. For is the time until none is sent any more, 0 for no
// limit.
type PingArgs struct {
	To       netip.Addr
	For      time.Duration
	Count    int
	Interval time.Duration
}

// PingReply has the round trip times, and the number of pings sent.
type PingReply struct {
	RTTs []time.Duration
	Sent int
}

// Ping pings the other end.
func (h *Host) Ping(args PingArgs, reply *PingReply) error {
	e, err := h.a.current()
	if err != nil {
		return err
	}
	var end time.Time
	if args.For > 0 {
		end = time.Now().Add(args.For)
	}
	reply.RTTs, reply.Sent, err = e.Ping(h.a.ctx, args.To, end, args.Count, args.Interval)
	return err
}

// Busy returns the time that the host's processors have worked since boot.
func (h *Host) Busy(_ None, busy *time.Duration) (err error) {
	*busy, err = testbed.BusyCPU()
	return err
}

// Planned reports whether ropewalk at this end uses a port plan of the other one.
func (h *Host) Planned(_ None, planned *bool) error {
	e, err := h.a.current()
	if err == nil {
		*planned, err = e.Planned()
	}
	return err
}

// Echo answers datagrams that arrive at an address, until Close.
func (h *Host) Echo(at netip.AddrPort, _ *None) error {
	s, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	h.a.mu.Lock()
	h.a.servers = append(h.a.servers, s)
	h.a.mu.Unlock()
	go func() {
		b := make([]byte, maxProbe)
		for {
			n, from, err := s.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = s.WriteToUDPAddrPort(b[:n], from) // a caller notices a loss
		}
	}()
	return nil
}

// ProbeArgs are the addresses of a Probe: from this host to one with an Echo. Size is the datagram's, in bytes.
type ProbeArgs struct {
	From, To netip.AddrPort
	Size     int
}

const (
	probes    = 10
	probeWait = 500 * time.Millisecond
	maxProbe  = 1 << 16
)

// errSilent is the error of a Probe without an answer.
var errSilent = errors.New("no answer: a firewall or a security group drops UDP, or this is not an address of that host")

// Probe sends a datagram until it is answered.
func (h *Host) Probe(args ProbeArgs, _ *None) error {
	s, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(args.From), net.UDPAddrFromAddrPort(args.To))
	if err != nil {
		return err
	}
	defer s.Close()
	b := make([]byte, args.Size)
	for range probes {
		if _, err := s.Write(b); err != nil {
			return err
		}
		_ = s.SetReadDeadline(time.Now().Add(probeWait))
		if _, err := io.ReadAtLeast(s, b, 1); err == nil {
			return nil
		}
	}
	return errSilent
}
