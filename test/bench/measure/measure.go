// SPDX-License-Identifier: Apache-2.0

// Package measure holds the figures by which implementations are compared: Measures, which every
// comparison takes, and Trials and Paths, which are taken only when named. Its Lab is the Lab of
// pkg/lab/testbed with the hosts that trials add.
package measure

import (
	"context"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

// Lab is two hosts and a tunnel between them, with the additions of trials.
type Lab struct {
	*testbed.Lab
	// QUIC is the program that makes QUIC traffic; empty means that there is none.
	QUIC string

	crossTraffic *crossTraffic // nil until a trial needs it
}

// Measure is one figure that can be taken in a Lab.
type Measure struct {
	// Name is the name in docs/dev/measurements.md; What describes the measurement in a line.
	Name, Unit, What string
	// Lower is set where lower is better.
	Lower bool
	// NeedsQUIC is set where Run needs Lab.QUIC.
	NeedsQUIC bool
	// Run takes the figure. Each stretch of traffic lasts d (ndr64 and ndr1340 have up to twenty, of two seconds at most;
	// idle figures wait as long). A Lab serves one Run at a time.
	Run func(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error)
	// OnPath takes the place of Run in the measures of Hosts, which have no Lab.
	OnPath testbed.Measure
}

// Measures are all measures, in the order in which they should be taken: rss is a peak over all that came before.
func Measures() []Measure {
	const gbps = "Gbit/s"
	tcp := func(streams int) traffic.Config { return traffic.Config{Kind: traffic.TCP, Streams: streams} }
	udp := func(train int, rate float64) traffic.Config {
		return traffic.Config{Kind: traffic.UDP, Size: testbed.Payload, Train: train, BitsPerSecond: rate}
	}
	return []Measure{
		{Name: "tcp1", Unit: gbps, What: "TCP, 1 stream", Run: throughput(testbed.Flow{Config: tcp(1)})},
		{Name: "tcp4", Unit: gbps, What: "TCP, 4 streams", Run: throughput(testbed.Flow{Config: tcp(4)})},
		{Name: "tcp16", Unit: gbps, What: "TCP, 16 streams", Run: throughput(testbed.Flow{Config: tcp(16)})},
		{Name: "rev4", Unit: gbps, What: "TCP, 4 streams, from B to A", Run: throughput(testbed.Flow{Config: tcp(4), Reverse: true})},
		{Name: "tcp6", Unit: gbps, What: "TCP over inner IPv6, 4 streams", Run: throughput(testbed.Flow{Config: tcp(4), IPv6: true})},
		{
			Name: "udpgso", Unit: gbps, What: "UDP in trains (UDP_SEGMENT), unlimited: received",
			Run: throughput(testbed.Flow{Config: udp(64, 0)}),
		},
		{
			Name: "udp1400", Unit: gbps, What: "UDP of 1340 B, single datagrams, 1 Gbit/s offered: received",
			Run: throughput(testbed.Flow{Config: udp(1, 1e9)}),
		},
		{Name: "ndr64", Unit: "kpps", What: "highest rate of 64 B datagrams that loses under 1 %", Run: noDrop(64)},
		{Name: "ndr1340", Unit: "kpps", What: "highest rate of 1340 B datagrams that loses under 1 %", Run: noDrop(testbed.Payload)},
		{
			Name: "cpu1g", Unit: "cores per Gbit/s", What: "CPU time of the whole machine at TCP of 1 Gbit/s", Lower: true,
			Run: on(costAtOneGigabit),
		},
		{Name: "rtt_idle", Unit: "ms", What: "ICMP round trip, mean, idle", Lower: true, Run: on(testbed.IdleRTT)},
		{Name: "rtt_load", Unit: "ms", What: "ICMP round trip, mean, under TCP of 4 streams", Lower: true, Run: on(testbed.LoadedRTT)},
		{
			Name: "wakeups", Unit: "1/s", What: "context switches of both daemons' threads, idle", Lower: true,
			Run: on(testbed.IdleWakeups),
		},
		{Name: "rss", Unit: "MiB", What: "peak resident memory of both daemons, summed", Lower: true, Run: on(testbed.PeakMemory)},
	}
}

// on makes a figure of the testbed one of a Lab.
func on(m testbed.Measure) func(context.Context, *Lab, time.Duration) (testbed.Sample, error) {
	return func(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) { return m(ctx, l.Lab, d) }
}

func throughput(f testbed.Flow) func(context.Context, *Lab, time.Duration) (testbed.Sample, error) {
	return on(testbed.Throughput(f))
}

func noDrop(size int) func(context.Context, *Lab, time.Duration) (testbed.Sample, error) {
	return on(testbed.NoDrop(size, testbed.NDRRates()))
}

func costAtOneGigabit(ctx context.Context, p testbed.Path, d time.Duration) (testbed.Sample, error) {
	o, err := p.Send(ctx, testbed.Flow{Config: traffic.Config{Kind: traffic.TCP, BitsPerSecond: 1e9, Duration: d}})
	if err != nil {
		return testbed.Sample{}, err
	}
	return testbed.Sample{Value: o.CoresPerGbps(), More: map[string]float64{"gbps": o.Gbps(), "cores": o.Cores}}, nil
}
