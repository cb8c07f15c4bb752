// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netlab"
	"github.com/ropewalk/ropewalk/pkg/traffic"
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
	p, err := StartProcess(ctx, h, argv...)
	if err != nil {
		return nil, err
	}
	s := &server{p: p}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	limit := time.After(readyLimit)
	for !strings.Contains(p.Log(), "listening on") {
		select {
		case <-tick.C:
			continue
		case <-p.Done():
			err = p.Err()
		case <-limit:
			err = errors.New("the traffic server does not listen" + p.LastWords())
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		return nil, errors.Join(fmt.Errorf("starting a traffic server: %w", err), s.stop())
	}
	return s, nil
}

func (s *server) stop() error { return s.p.Stop() }

// Flow is one run of traffic through a Lab.
type Flow struct {
	// Config's Kind, Streams, Duration, Size, Train and BitsPerSecond count; the rest is filled in here.
	traffic.Config
	// Reverse sends from B to A.
	Reverse bool
	// IPv6 sends over IPv6.
	IPv6 bool
}

// Outcome is what became of a Flow.
type Outcome struct {
	traffic.Result
	// Cores is how many of the machine's processors worked, on average over the time that the traffic took, on both ends,
	// the generator and whatever else runs.
	Cores float64
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

// CoresPerGbps is what a Gbit/s costs.
func (o Outcome) CoresPerGbps() float64 {
	if o.Gbps() == 0 {
		return 0
	}
	return o.Cores / o.Gbps()
}

// Send runs one flow of traffic and returns what became of it. Damaged data is an error, and so is a daemon that dies.
func (l *Lab) Send(ctx context.Context, f Flow) (Outcome, error) {
	from, to := l.A, l.B
	if f.Reverse {
		from, to = l.B, l.A
	}
	addr := l.Addrs(to)[0]
	if f.IPv6 {
		addr = l.Addrs(to)[1]
	}
	f.Server = netip.AddrPortFrom(addr, serverPort)
	before, err := busyCPU()
	if err != nil {
		return Outcome{}, err
	}
	res, err := l.client(ctx, from.Host, f.Config)
	if err == nil && res.Corrupt != 0 {
		err = fmt.Errorf("%d pieces of %s traffic arrived damaged", res.Corrupt, res.Kind)
	}
	after, err2 := busyCPU()
	if err = errors.Join(l.died(), err, err2); err != nil {
		return Outcome{}, err
	}
	o := Outcome{Result: res}
	if res.Seconds > 0 {
		o.Cores = (after - before).Seconds() / res.Seconds
	}
	return o, nil
}

// client runs `ropewalk traffic client` in a host.
func (l *Lab) client(ctx context.Context, h *netlab.Host, cfg traffic.Config) (traffic.Result, error) {
	argv := append(slices.Clone(l.cfg.Traffic), clientArgs(cfg)...)
	cmd := h.Command(ctx, argv...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	if ctx.Err() != nil {
		return traffic.Result{}, context.Cause(ctx)
	}
	if err != nil {
		return traffic.Result{}, fmt.Errorf("running %s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(diag.String()))
	}
	return parseResult(out.Bytes())
}

func clientArgs(c traffic.Config) []string {
	return []string{
		"client", "--json",
		"--kind", string(c.Kind),
		"--streams", strconv.Itoa(max(c.Streams, 1)),
		"--seconds", strconv.FormatFloat(c.Duration.Seconds(), 'f', -1, 64),
		"--size", strconv.Itoa(c.Size),
		"--train", strconv.Itoa(max(c.Train, 1)),
		"--rate", strconv.FormatFloat(c.BitsPerSecond, 'f', -1, 64),
		c.Server.String(),
	}
}

// parseResult finds the line of JSON: a test binary that plays the generator says more.
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
