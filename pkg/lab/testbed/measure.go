// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

// Sample is one figure. Value is in the Measure's unit and is what counts; More are its companions, by name with unit
// ("loss_percent"), and may be nil.
type Sample struct {
	Value float64
	More  map[string]float64
}

// Measure takes one figure in a Lab. Each stretch of traffic lasts d. A Lab serves one Measure at a time.
type Measure func(ctx context.Context, l *Lab, d time.Duration) (Sample, error)

// Payload is the UDP payload that fits a tunnel of MTU 1420 with room to spare.
const Payload = 1340

// ErrNoDaemon is returned by Measures of the daemons in a raw Lab.
var ErrNoDaemon = errors.New("a raw lab has no daemons")

// Throughput is what arrives of a Flow, in Gbit/s, with its cost.
func Throughput(f Flow) Measure {
	return func(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
		f.Duration = d
		o, err := l.Send(ctx, f)
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
func IdleRTT(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
	rtts, err := l.ping(ctx, pings(d), pingEvery)
	if err != nil {
		return Sample{}, err
	}
	return rttSample(rtts, pings(d))
}

func pings(d time.Duration) int { return max(int(d/pingEvery), minPings) }

// LoadedRTT is the mean ICMP round trip under TCP, in ms. It pings while four streams run at
// full speed. A ping answered after the load has ended would measure an idle tunnel.
func LoadedRTT(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
	lead := min(LoadLead, d)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		o   Outcome
		err error
	}
	done := make(chan result, 1)
	length := lead + d + LoadSpare
	end := time.Now().Add(length) // the load ends no earlier: it has yet to start
	go func() {
		o, err := l.Send(ctx, Flow{Config: traffic.Config{Kind: traffic.TCP, Streams: 4, Duration: length}})
		done <- result{o, err}
	}()
	rtts, sent, err := l.pingBetween(ctx, lead, end, pings(d))
	if err != nil {
		cancel()
	}
	load := <-done
	if err := errors.Join(err, load.err); err != nil {
		return Sample{}, err
	}
	s, err := rttSample(rtts, sent)
	if err == nil {
		s.More["load_gbps"] = load.o.Gbps()
	}
	return s, err
}

func (l *Lab) pingBetween(ctx context.Context, wait time.Duration, end time.Time, count int) ([]time.Duration, int, error) {
	if err := Pause(ctx, wait); err != nil {
		return nil, 0, err
	}
	return l.pingUntil(ctx, end, count, pingEvery)
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
func IdleWakeups(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
	if l.Raw() {
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
func PeakMemory(_ context.Context, l *Lab, _ time.Duration) (Sample, error) {
	if l.Raw() {
		return Sample{}, ErrNoDaemon
	}
	bytes, err := peakRSS(l.pids())
	return Sample{Value: float64(bytes) / (1 << 20)}, err
}
