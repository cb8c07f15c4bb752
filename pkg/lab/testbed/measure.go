// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

// Sample is one figure. Value is in the Measure's unit and is the figure that counts; More are its
// companions, by name with unit ("loss_percent"), and may be nil.
type Sample struct {
	Value float64
	More  map[string]float64
}

// Path has two ends, A and B, between which traffic is measured. A Lab is one.
type Path interface {
	// Send runs one flow and returns its result. Corrupt data, or a daemon that exits,
	// is an error.
	Send(ctx context.Context, f Flow) (Outcome, error)
	// Ping sends count ICMP echo requests from A to B over IPv4, one each interval. A zero end sets no
	// limit, else none is sent after it. rtts are the round trip times of the answered ones.
	Ping(ctx context.Context, end time.Time, count int, interval time.Duration) (rtts []time.Duration, sent int, err error)
}

// Measure takes one figure on a Path. Each stretch of traffic lasts d. A Path serves one Measure at a time.
type Measure func(ctx context.Context, p Path, d time.Duration) (Sample, error)

// Payload is the UDP payload that fits a tunnel of MTU 1420 with room to spare.
const Payload = 1340

// ErrNoDaemon is returned by Measures of the daemons of a Path that is no Lab, or a raw one.
var ErrNoDaemon = errors.New("there are no daemons to measure")

// Throughput is the rate at which a Flow arrives, in Gbit/s, with its cost.
func Throughput(f Flow) Measure {
	return func(ctx context.Context, p Path, d time.Duration) (Sample, error) {
		f.Duration = d
		o, err := p.Send(ctx, f)
		if err != nil {
			return Sample{}, err
		}
		more := map[string]float64{"cores": o.Cores, "cores_per_gbps": o.CoresPerGbps()}
		if f.Kind == traffic.UDP {
			more["loss_percent"] = o.LossPercent()
			more["sent_gbps"] = float64(o.SentBytes) * 8 / 1e9 / d.Seconds()
			more["reordered"] = float64(o.Reordered)
			o.Shares.addTo(more)
		}
		return Sample{Value: o.Gbps(), More: more}, nil
	}
}

const (
	pingEvery = 20 * time.Millisecond
	minPings  = 10
	// LoadLead is how long a load has run when the pings begin.
	LoadLead = 1500 * time.Millisecond
	// LoadSpare is how long the load outlasts the pings if all are answered at once.
	LoadSpare = time.Second
)

// IdleRTT is the mean ICMP round trip of an idle tunnel, in ms.
func IdleRTT(ctx context.Context, p Path, d time.Duration) (Sample, error) {
	rtts, sent, err := p.Ping(ctx, time.Time{}, pings(d), pingEvery)
	if err != nil {
		return Sample{}, err
	}
	return rttSample(rtts, sent)
}

func pings(d time.Duration) int { return max(int(d/pingEvery), minPings) }

// LoadedRTT is the mean ICMP round trip under TCP of four streams at full speed, in ms.
func LoadedRTT(ctx context.Context, p Path, d time.Duration) (Sample, error) {
	s, loads, err := UnderLoad(ctx, p, d, LoadLead, Flow{Config: traffic.Config{Kind: traffic.TCP, Streams: 4}})
	if err == nil {
		s.More["load_gbps"] = loads[0].Gbps()
	}
	return s, err
}

// UnderLoad is the mean ICMP round trip while flows run, in ms, with the outcomes of the flows.
// They run for a lead, or d if that is less, which is the warm-up of their rate, and then for d
// with pings. A ping that is answered after the load has ended would measure an idle tunnel. The
// flows' durations are set here.
func UnderLoad(ctx context.Context, p Path, d, lead time.Duration, flows ...Flow) (Sample, []Outcome, error) {
	lead = min(lead, d)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	length := lead + d + min(LoadSpare, d)
	end := time.Now().Add(length) // the load ends no earlier: it has yet to start
	loads, errs := make([]Outcome, len(flows)), make([]error, len(flows))
	var running sync.WaitGroup
	for i, f := range flows {
		f.Duration = length
		if f.Kind == traffic.TCP {
			f.Warmup = lead
		}
		running.Go(func() { loads[i], errs[i] = p.Send(ctx, f) })
	}
	var rtts []time.Duration
	var sent int
	err := Pause(ctx, lead)
	if err == nil {
		rtts, sent, err = p.Ping(ctx, end, pings(d), pingEvery)
	}
	if err != nil {
		cancel()
	}
	running.Wait()
	if err := errors.Join(append(errs, err)...); err != nil {
		return Sample{}, nil, err
	}
	s, err := rttSample(rtts, sent)
	return s, loads, err
}

// Pause waits, unless ctx is done first.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// rttSample summarizes round-trip times in milliseconds: mean, quantiles, maximum and loss.
func rttSample(rtts []time.Duration, sent int) (Sample, error) {
	if len(rtts) == 0 {
		return Sample{}, fmt.Errorf("none of %d pings was answered", sent)
	}
	slices.Sort(rtts)
	ms := make([]float64, len(rtts))
	for i, d := range rtts {
		ms[i] = d.Seconds() * 1e3
	}
	return Sample{Value: mean(ms), More: map[string]float64{
		"p50_ms": quantile(ms, 0.5), "p99_ms": quantile(ms, 0.99), "max_ms": ms[len(ms)-1],
		"loss_percent": 100 * float64(sent-len(rtts)) / float64(sent),
	}}, nil
}

// settle is how long traffic's last timers (delayed acknowledgements, passive keepalives) are left to fire.
const settle = 500 * time.Millisecond

// IdleWakeups counts the context switches of both daemons per second, idle.
func IdleWakeups(ctx context.Context, p Path, d time.Duration) (Sample, error) {
	l, ok := p.(*Lab)
	if !ok || l.Raw() {
		return Sample{}, ErrNoDaemon
	}
	if err := Pause(ctx, min(settle, d)); err != nil {
		return Sample{}, err
	}
	pids := l.pids()
	before, err := contextSwitches(pids)
	if err != nil {
		return Sample{}, err
	}
	begin := time.Now()
	if err := Pause(ctx, d); err != nil {
		return Sample{}, err
	}
	seconds := time.Since(begin).Seconds()
	after, err := contextSwitches(pids)
	if err != nil {
		return Sample{}, err
	}
	// Threads that ended in between took their counts with them.
	return Sample{Value: float64(after-min(before, after)) / seconds}, nil
}

// PeakMemory is the peak resident memory of both daemons, summed, in MiB.
func PeakMemory(_ context.Context, p Path, _ time.Duration) (Sample, error) {
	l, ok := p.(*Lab)
	if !ok || l.Raw() {
		return Sample{}, ErrNoDaemon
	}
	bytes, err := peakRSS(l.pids())
	return Sample{Value: float64(bytes) / (1 << 20)}, err
}
