// SPDX-License-Identifier: Apache-2.0

package bench

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

// Measure is one figure that can be taken in a Lab.
type Measure struct {
	// Name is that of docs/performance.md; What describes the measurement in a line.
	Name, Unit, What string
	// Lower is set where lower is better.
	Lower bool
	// Run takes the figure. Each stretch of traffic lasts d (ndr64 and ndr1340 have up to twenty, of two seconds at most;
	// idle figures wait as long). A Lab serves one Run at a time.
	Run func(ctx context.Context, l *Lab, d time.Duration) (Sample, error)
}

// payload is the UDP payload that fits a tunnel of MTU 1420 with room to spare.
const payload = 1340

// Measures are all measures, in the order in which they should be taken: rss is a peak over all that came before.
func Measures() []Measure {
	const gbps = "Gbit/s"
	tcp := func(streams int) traffic.Config { return traffic.Config{Kind: traffic.TCP, Streams: streams} }
	udp := func(train int, rate float64) traffic.Config {
		return traffic.Config{Kind: traffic.UDP, Size: payload, Train: train, BitsPerSecond: rate}
	}
	return []Measure{
		{Name: "tcp1", Unit: gbps, What: "TCP, 1 stream", Run: throughput(Flow{Config: tcp(1)})},
		{Name: "tcp4", Unit: gbps, What: "TCP, 4 streams", Run: throughput(Flow{Config: tcp(4)})},
		{Name: "tcp16", Unit: gbps, What: "TCP, 16 streams", Run: throughput(Flow{Config: tcp(16)})},
		{Name: "rev4", Unit: gbps, What: "TCP, 4 streams, from B to A", Run: throughput(Flow{Config: tcp(4), Reverse: true})},
		{Name: "tcp6", Unit: gbps, What: "TCP over inner IPv6, 4 streams", Run: throughput(Flow{Config: tcp(4), IPv6: true})},
		{
			Name: "udpgso", Unit: gbps, What: "UDP in trains (UDP_SEGMENT), unlimited: received",
			Run: throughput(Flow{Config: udp(64, 0)}),
		},
		{
			Name: "udp1400", Unit: gbps, What: "UDP of 1340 B, single datagrams, 1 Gbit/s offered: received",
			Run: throughput(Flow{Config: udp(1, 1e9)}),
		},
		{Name: "ndr64", Unit: "kpps", What: "highest rate of 64 B datagrams that loses under 1 %", Run: noDrop(64)},
		{Name: "ndr1340", Unit: "kpps", What: "highest rate of 1340 B datagrams that loses under 1 %", Run: noDrop(payload)},
		{
			Name: "cpu1g", Unit: "cores per Gbit/s", What: "CPU time of the whole machine at TCP of 1 Gbit/s", Lower: true,
			Run: costAtOneGigabit,
		},
		{Name: "rtt_idle", Unit: "ms", What: "ICMP round trip, mean, idle", Lower: true, Run: idleRTT},
		{Name: "rtt_load", Unit: "ms", What: "ICMP round trip, mean, under TCP of 4 streams", Lower: true, Run: loadedRTT},
		{
			Name: "wakeups", Unit: "1/s", What: "context switches of both daemons' threads, idle", Lower: true,
			Run: idleWakeups,
		},
		{Name: "rss", Unit: "MiB", What: "peak resident memory of both daemons, summed", Lower: true, Run: peakMemory},
	}
}

// ErrNoDaemon is returned by measures of the daemons in a raw Lab.
var ErrNoDaemon = errors.New("a raw lab has no daemons")

func throughput(f Flow) func(context.Context, *Lab, time.Duration) (Sample, error) {
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

func costAtOneGigabit(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
	o, err := l.Send(ctx, Flow{Config: traffic.Config{Kind: traffic.TCP, BitsPerSecond: 1e9, Duration: d}})
	if err != nil {
		return Sample{}, err
	}
	return Sample{Value: o.CoresPerGbps(), More: map[string]float64{"gbps": o.Gbps(), "cores": o.Cores}}, nil
}

const (
	pingEvery = 20 * time.Millisecond
	minPings  = 10
	// loadLead is how long the load has run when the pings begin.
	loadLead = 1500 * time.Millisecond
	// loadSpare is how much longer it runs than pings take that are answered at once.
	loadSpare = time.Second
)

func idleRTT(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
	rtts, err := l.ping(ctx, pings(d), pingEvery)
	if err != nil {
		return Sample{}, err
	}
	return rttSample(rtts, pings(d))
}

func pings(d time.Duration) int { return max(int(d/pingEvery), minPings) }

// loadedRTT pings while four streams run at full speed: an answer that came after them would be an idle one.
func loadedRTT(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
	lead := min(loadLead, d)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		o   Outcome
		err error
	}
	done := make(chan result, 1)
	length := lead + d + loadSpare
	end := time.Now().Add(length) // of the load at the earliest: it has yet to start
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
	if err := pause(ctx, wait); err != nil {
		return nil, 0, err
	}
	return l.pingUntil(ctx, end, count, pingEvery)
}

// pause waits, unless ctx is done first.
func pause(ctx context.Context, d time.Duration) error {
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

func idleWakeups(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
	if l.Raw() {
		return Sample{}, ErrNoDaemon
	}
	if err := pause(ctx, min(settle, d)); err != nil {
		return Sample{}, err
	}
	pids := l.pids()
	before, err := contextSwitches(pids)
	if err != nil {
		return Sample{}, err
	}
	begin := time.Now()
	if err := pause(ctx, d); err != nil {
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

func peakMemory(_ context.Context, l *Lab, _ time.Duration) (Sample, error) {
	if l.Raw() {
		return Sample{}, ErrNoDaemon
	}
	bytes, err := peakRSS(l.pids())
	return Sample{Value: float64(bytes) / (1 << 20)}, err
}
