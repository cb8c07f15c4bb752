// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

// serverPort is where the traffic servers listen.
const serverPort = 5210

// server is `ropewalk traffic server` in a host.
type server struct {
	p *Process
}

// startServer returns when the server listens.
func startServer(ctx context.Context, h *netlab.Host, command []string) (*server, error) {
	argv := append(slices.Clone(command), "server", "--listen", fmt.Sprintf("[::]:%d", serverPort))
	p, err := StartListening(ctx, h, argv...)
	if err != nil {
		return nil, fmt.Errorf("starting a traffic server: %w", err)
	}
	return &server{p: p}, nil
}

// StartListening is StartProcess for a server, and returns when that has written that it is "listening on" something.
func StartListening(ctx context.Context, h *netlab.Host, argv ...string) (*Process, error) {
	p, err := StartProcess(ctx, h, argv...)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	limit := time.After(ReadyLimit)
	for !strings.Contains(p.Log(), "listening on") {
		select {
		case <-tick.C:
			continue
		case <-p.Done():
			err = p.Err()
		case <-limit:
			err = errors.New("the server does not listen" + p.LastWords())
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

func (s *server) stop() error { return s.p.Stop() }

// Flow is one run of traffic through a Lab.
type Flow struct {
	// Config's Kind, Streams, Duration, Warmup, Congestion, Size, Train and BitsPerSecond count; the rest is filled in here.
	traffic.Config
	// Reverse sends from B to A.
	Reverse bool
	// To is the side to which A sends; nil is B. Not together with Reverse.
	To *Side
	// IPv6 sends over IPv6.
	IPv6 bool
}

// Outcome is the result of a Flow.
type Outcome struct {
	traffic.Result
	// Cores is the number of the machine's processors that worked, on average over the traffic's
	// time. It covers both ends, the generator and all other processes.
	Cores float64
	// Shares is the same CPU time by process.
	Shares Shares
}

// Gbps is the payload received, in Gbit/s.
func (o Outcome) Gbps() float64 { return o.BitsPerSecond / 1e9 }

// LossPercent is the share of datagrams that did not arrive.
func (o Outcome) LossPercent() float64 {
	if o.SentPackets == 0 {
		return 0
	}
	return 100 * float64(o.LostPackets) / float64(o.SentPackets)
}

// CoresPerGbps is the number of cores that a Gbit/s takes.
func (o Outcome) CoresPerGbps() float64 {
	if o.Gbps() == 0 {
		return 0
	}
	return o.Cores / o.Gbps()
}

// Send runs one flow of traffic and returns its result. Corrupt data is an error, as is a daemon
// that exits.
func (l *Lab) Send(ctx context.Context, f Flow) (Outcome, error) {
	_, to := l.ends(f)
	sharesBefore := l.readCPUTimes(to) // outside: looking through /proc is work too
	before, err := BusyCPU()
	if err != nil {
		return Outcome{}, err
	}
	res, sender, err := l.load(ctx, f)
	after, err2 := BusyCPU()
	shares := l.readCPUTimes(to).since(sharesBefore)
	shares.sender = sender
	if err = errors.Join(l.Err(), err, err2); err != nil {
		return Outcome{}, err
	}
	o := Outcome{Result: res}
	if res.Seconds > 0 {
		o.Cores = (after - before).Seconds() / res.Seconds
		o.Shares = shares.over(res.Seconds)
	}
	return o, nil
}

// Load runs one flow of traffic and returns what arrived. Unlike Send it measures nothing else and does not look at the daemons,
// so that another goroutine may restart them meanwhile. Corrupt data is an error.
func (l *Lab) Load(ctx context.Context, f Flow) (traffic.Result, error) {
	res, _, err := l.load(ctx, f)
	return res, err
}

// load is Load; it also returns the CPU time that the sending process took.
func (l *Lab) load(ctx context.Context, f Flow) (traffic.Result, time.Duration, error) {
	from, to := l.ends(f)
	f.Server = l.serverAt(to, f.IPv6)
	return runClient(ctx, l.cfg.Traffic, from.App, f.Config)
}

// ends are the sides from which and to which a flow goes.
func (l *Lab) ends(f Flow) (from, to *Side) {
	if f.Reverse {
		return l.B, l.A
	}
	return l.A, cmp.Or(f.To, l.B)
}

// serverAt is where a side's traffic server is reached.
func (l *Lab) serverAt(s *Side, ipv6 bool) netip.AddrPort {
	addr := l.Addrs(s)[0]
	if ipv6 {
		addr = l.Addrs(s)[1]
	}
	return netip.AddrPortFrom(addr, serverPort)
}

// damage returns an error if data arrived damaged.
func damage(res traffic.Result) error {
	if res.Corrupt == 0 {
		return nil
	}
	return fmt.Errorf("%d pieces of %s traffic arrived damaged", res.Corrupt, res.Kind)
}

// runClient runs `ropewalk traffic client` in a host, and also returns the CPU time that it took.
func runClient(ctx context.Context, command []string, h *netlab.Host, cfg traffic.Config) (traffic.Result, time.Duration, error) {
	var took time.Duration
	res, err := Client(command, cfg, func(argv []string) (out []byte, err error) {
		out, took, err = RunProgram(ctx, h, argv)
		return out, err
	})
	return res, took, err
}

// Client runs the client of a traffic generator, by a function that runs a command and returns its output. Corrupt data is an error.
func Client(command []string, cfg traffic.Config, run func(argv []string) ([]byte, error)) (traffic.Result, error) {
	out, err := run(append(slices.Clone(command), clientArgs(cfg)...))
	if err != nil {
		return traffic.Result{}, err
	}
	res, err := parseResult(out)
	return res, errors.Join(err, damage(res))
}

// RunProgram runs a program in a host, and returns its output and the CPU time that it took.
func RunProgram(ctx context.Context, h *netlab.Host, argv []string) ([]byte, time.Duration, error) {
	cmd := h.Command(ctx, argv...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("running %s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(diag.String()))
	}
	return out.Bytes(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

func clientArgs(c traffic.Config) []string {
	args := []string{
		"client", "--json",
		"--kind", string(c.Kind),
		"--streams", strconv.Itoa(max(c.Streams, 1)),
		"--seconds", strconv.FormatFloat(c.Duration.Seconds(), 'f', -1, 64),
		"--size", strconv.Itoa(c.Size),
		"--train", strconv.Itoa(max(c.Train, 1)),
		"--rate", strconv.FormatFloat(c.BitsPerSecond, 'f', -1, 64),
	}
	if c.Congestion != "" {
		args = append(args, "--congestion", c.Congestion)
	}
	if c.Warmup != 0 {
		args = append(args, "--warmup", strconv.FormatFloat(c.Warmup.Seconds(), 'f', -1, 64))
	}
	return append(args, c.Server.String())
}

// parseResult parses the line of JSON. A test binary that acts as the generator also prints other
// lines.
func parseResult(out []byte) (traffic.Result, error) {
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if line := lines.Bytes(); bytes.HasPrefix(line, []byte("{")) {
			var r traffic.Result
			if err := json.Unmarshal(line, &r); err != nil {
				return traffic.Result{}, fmt.Errorf("parsing the traffic client's result: %w", err)
			}
			return r, nil
		}
	}
	return traffic.Result{}, fmt.Errorf("the traffic client printed no result: %q", out)
}
