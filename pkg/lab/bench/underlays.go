// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Tunnel is a tunnel whose underlay can be changed: a testbed.Lab, or a testbed.End.
type Tunnel interface {
	Load(ctx context.Context, f testbed.Flow) (traffic.Result, error)
	SetUnderlay(ctx context.Context, mode config.UnderlayMode) (config.UnderlayReport, error)
}

// UnderlayConfig configures CompareUnderlays.
type UnderlayConfig struct {
	// Stretch is how long each stretch of traffic lasts, Rounds the number of rounds after the first, which does not count.
	Stretch  time.Duration
	Rounds   int
	Progress func(Progress)
}

// traffics are the kinds of traffic that are compared: single datagrams and trains. payload is the
// payload of a packet.
var traffics = []struct {
	what    string
	config  traffic.Config
	payload float64
}{
	{"single datagrams", traffic.Config{Kind: traffic.UDP, Streams: 4, Size: testbed.Payload}, testbed.Payload},
	{"trains", traffic.Config{Kind: traffic.TCP, Streams: 4}, 1420 - 52}, // MTU less headers of IPv4 and TCP with timestamps
}

// pacedShare is the share of the slower underlay's throughput at which CPU time is measured. Without a limit, CPU time would only show that
// the machine is full.
const pacedShare = 0.5

// comparison is one CompareUnderlays. Figures are by kind of traffic and by mode.
type comparison struct {
	cfg         UnderlayConfig
	tunnel      Tunnel
	mode        string // of the AF_XDP sockets
	done, total int
	gbps, ns    [2]map[config.UnderlayMode][]float64
	paced       [2]float64 // Gbit/s at which CPU time is measured
}

// CompareUnderlays carries traffic in both directions at once by UDP sockets and by AF_XDP, in
// turn. It returns the figures and the mode of the AF_XDP sockets. Each measurement that fails is
// an error.
func CompareUnderlays(ctx context.Context, t Tunnel, cfg UnderlayConfig) (measurement.Result, error) {
	c := comparison{cfg: cfg, tunnel: t, total: 4 + 8*cfg.Rounds}
	for k := range traffics {
		c.gbps[k], c.ns[k] = map[config.UnderlayMode][]float64{}, map[config.UnderlayMode][]float64{}
	}
	for n := range cfg.Rounds + 1 {
		if err := c.round(ctx, n); err != nil {
			return measurement.Result{}, err
		}
	}
	return measurement.Result{Mode: c.mode, Datagrams: c.result(0), Trains: c.result(1)}, nil
}

// round measures both underlays. The first round finds the rates for the others.
func (c *comparison) round(ctx context.Context, n int) error {
	modes := []config.UnderlayMode{config.UnderlayUDP, config.UnderlayXDP}
	if n%2 == 1 {
		slices.Reverse(modes)
	}
	for _, mode := range modes {
		if err := c.use(ctx, mode); err != nil {
			return err
		}
		for k := range traffics {
			if err := c.measure(ctx, k, mode, n == 0); err != nil {
				return fmt.Errorf("measuring %s by %v: %w", traffics[k].what, mode, err)
			}
		}
	}
	return nil
}

// use changes the underlay, and returns when the tunnel carries packets by it.
func (c *comparison) use(ctx context.Context, mode config.UnderlayMode) error {
	r, err := c.tunnel.SetUnderlay(ctx, mode)
	if err != nil {
		return err
	}
	if mode == config.UnderlayXDP {
		c.mode = r.How
	}
	ping := testbed.Flow{Config: traffic.Config{Kind: traffic.Ping, Duration: 100 * time.Millisecond}}
	ctx, cancel := context.WithTimeout(ctx, testbed.ReadyLimit)
	defer cancel()
	for {
		res, err := c.tunnel.Load(ctx, ping)
		if err == nil && res.Latency != nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for a packet by %v: %w", mode, errors.Join(context.Cause(ctx), err))
		}
	}
}

func (c *comparison) measure(ctx context.Context, k int, mode config.UnderlayMode, first bool) error {
	c.show(traffics[k].what + " by " + mode.String())
	gbps, _, err := c.load(ctx, k, 0)
	if err != nil {
		return err
	}
	if first {
		if c.paced[k] == 0 || pacedShare*gbps < c.paced[k] {
			c.paced[k] = pacedShare * gbps
		}
		return nil
	}
	c.show(fmt.Sprintf("%s by %v at %.3g Gbit/s", traffics[k].what, mode, c.paced[k]))
	_, ns, err := c.load(ctx, k, c.paced[k])
	c.gbps[k][mode], c.ns[k][mode] = append(c.gbps[k][mode], gbps), append(c.ns[k][mode], ns)
	return err
}

func (c *comparison) show(what string) {
	c.cfg.Progress(Progress{Stage: StageUnderlay, What: what, Done: c.done, Total: c.total})
	c.done++
}

// load carries one kind of traffic in both directions, at most at a rate (0: no limit). It returns
// the sum of the rates that arrived, and the CPU time of this machine for a packet. The time
// includes the kernel's work in interrupts, which is charged to no process of the tunnel, and the
// traffic's ends.
func (c *comparison) load(ctx context.Context, k int, rate float64) (gbps, ns float64, err error) {
	f := testbed.Flow{Config: traffics[k].config}
	f.Duration, f.BitsPerSecond = c.cfg.Stretch, rate/2*1e9
	back := f
	back.Reverse = true
	var results [2]traffic.Result
	var errs [2]error
	before, err := testbed.BusyCPU()
	var running sync.WaitGroup
	for i, f := range []testbed.Flow{f, back} {
		running.Go(func() { results[i], errs[i] = c.tunnel.Load(ctx, f) })
	}
	running.Wait()
	after, err2 := testbed.BusyCPU()
	if err := errors.Join(err, err2, errs[0], errs[1]); err != nil {
		return 0, 0, err
	}
	packets := float64(results[0].Bytes+results[1].Bytes) / traffics[k].payload
	if packets == 0 {
		return 0, 0, errors.New("nothing arrived")
	}
	return (results[0].BitsPerSecond + results[1].BitsPerSecond) / 1e9, float64(after-before) / packets, nil
}

func (c *comparison) result(k int) measurement.Comparison {
	cost := func(mode config.UnderlayMode) measurement.Cost {
		return measurement.Cost{Gbps: median(c.gbps[k][mode]), NsPerPacket: median(c.ns[k][mode])}
	}
	return measurement.Comparison{UDP: cost(config.UnderlayUDP), XDP: cost(config.UnderlayXDP)}
}

// median is the middle of values, or the mean of the two in the middle.
func median(v []float64) float64 {
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// maxBusy is the load by other programs, in percent of all CPUs, up to which underlays are compared.
const maxBusy = 25

// CheckIdle returns an error if other programs keep this machine so busy that they would decide a comparison.
func CheckIdle(ctx context.Context) error {
	if busy := busyPercent(ctx, runtime.NumCPU()); busy > maxBusy {
		return fmt.Errorf("this machine is %.0f %% busy with something else, which would decide the comparison: at most %d %% are acceptable", busy, maxBusy)
	}
	return nil
}

// WriteUnderlayTable writes a comparison for people.
func WriteUnderlayTable(w io.Writer, r *measurement.Result) error {
	text := fmt.Sprintf("%-34s %10s %10s %8s\n", r.Device+", AF_XDP mode "+r.Mode, "udp", "xdp", "xdp/udp")
	for k, m := range []*measurement.Comparison{&r.Datagrams, &r.Trains} {
		for _, row := range []struct {
			unit     string
			udp, xdp float64
		}{{"Gbit/s, both ways", m.UDP.Gbps, m.XDP.Gbps}, {"ns of CPU per packet", m.UDP.NsPerPacket, m.XDP.NsPerPacket}} {
			text += fmt.Sprintf("%-34s %10s %10s %8.2f\n", traffics[k].what+", "+row.unit, threeDigits(row.udp), threeDigits(row.xdp), row.xdp/row.udp)
		}
	}
	text += "\nUnderlay = auto will use " + map[bool]string{true: "AF_XDP", false: "UDP sockets"}[r.Better()] + " on this device.\n"
	if r.Datagrams.Better() != r.Trains.Better() {
		text += "AF_XDP is better for one kind of traffic only: set Underlay = xdp on tunnels that carry mostly that.\n"
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}
