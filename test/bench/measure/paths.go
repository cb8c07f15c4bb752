// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

const (
	// pathBuffers is the limit of TCP's windows on paths with a delay, more than 5 Gbit/s over 100 ms need.
	pathBuffers = 128 << 20
	// pathLead is how long flows on such a path run before their rate is measured: slow start takes a dozen round trips.
	pathLead = 3 * time.Second
	// bottleneckRate and bottleneckDelay belong to the tests with a queue.
	bottleneckRate  = 300e6
	bottleneckDelay = 10 * time.Millisecond
	// slowRate and slowQueue belong to the device towards a slow peer. slowLoad is the load that
	// is sent to it: ten times as much.
	slowRate  = 10e6
	slowQueue = 256 << 10
	slowLoad  = 100e6
)

// Paths are measures of tunnels whose network is not a bare cable between two hosts. Each makes a lab of its own for that network,
// and is taken only when asked for.
func Paths() []Measure {
	const gbps, mbps = "Gbit/s", "Mbit/s"
	var list []Measure
	for _, ms := range []int{1, 20, 100} {
		list = append(list, Measure{
			Name: fmt.Sprintf("wan%d", ms), Unit: gbps, Run: overDelay(time.Duration(ms) * time.Millisecond),
			What: fmt.Sprintf("TCP, 1 stream, CUBIC, over a path with a round trip of %d ms", ms),
		})
	}
	for _, q := range []struct {
		name, what string
		size       int
	}{{"queue64k", "64 KiB", 64 << 10}, {"queue4m", "4 MiB", 4 << 20}} {
		list = append(list, Measure{
			Name: q.name, Unit: mbps, Run: overBottleneck(q.size),
			What: "TCP, 4 streams, through a bottleneck of 300 Mbit/s with a queue of " + q.what,
		})
	}
	return append(list,
		Measure{Name: "lan", Unit: gbps, What: "TCP, 1 stream, CUBIC", Run: withoutDelay},
		Measure{Name: "fwd1", Unit: gbps, What: "forwarded TCP, 1 stream", Run: forwarded(bothWays(tcpStreams(1)))},
		Measure{Name: "fwd4", Unit: gbps, What: "forwarded TCP, 4 streams", Run: forwarded(bothWays(tcpStreams(4)))},
		Measure{Name: "slowpeer", Unit: gbps, What: "TCP, 4 streams, while a peer behind a device of 10 Mbit/s gets UDP of 100", Run: besideSlowPeer},
		Measure{Name: "rrul", Unit: "ms", What: "ICMP round trip, mean, under TCP of 4 streams each way", Lower: true, Run: on(rrul)},
		Measure{Name: "quic", Unit: gbps, What: "QUIC, 1 connection", Run: quicBothWays, NeedsQUIC: true},
		Measure{Name: "fwdquic", Unit: gbps, What: "forwarded QUIC, 1 connection", Run: forwarded(quicBothWays), NeedsQUIC: true},
	)
}

type run = func(context.Context, *Lab, time.Duration) (testbed.Sample, error)

func tcpStreams(n int) testbed.Flow {
	return testbed.Flow{Config: traffic.Config{Kind: traffic.TCP, Streams: n}}
}

// inAnother takes a figure in a lab of the same daemon with a different configuration.
func (l *Lab) inAnother(ctx context.Context, change func(*testbed.Config), take func(*Lab) (testbed.Sample, error)) (
	s testbed.Sample, err error,
) {
	other, err := l.Another(ctx, change)
	if err != nil {
		return testbed.Sample{}, err
	}
	defer func() { err = errors.Join(err, other.Close()) }()
	return take(&Lab{Lab: other, QUIC: l.QUIC})
}

// onLink takes a figure on a path with a Link.
func (l *Lab) onLink(ctx context.Context, link netlab.Link, take func(*Lab) (testbed.Sample, error)) (testbed.Sample, error) {
	return l.inAnother(ctx, func(c *testbed.Config) { c.Link = &link }, func(l *Lab) (testbed.Sample, error) {
		for _, s := range []*testbed.Side{l.A, l.B} {
			if err := s.Host.EnlargeTCPBuffers(pathBuffers); err != nil {
				return testbed.Sample{}, err
			}
		}
		return take(l)
	})
}

// overDelay measures one and four streams of two congestion controls over a path with a round
// trip. The result is the figure of one stream of CUBIC.
func overDelay(rtt time.Duration) run {
	return func(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) {
		return l.onLink(ctx, netlab.Link{Delay: rtt / 2}, func(l *Lab) (testbed.Sample, error) {
			return l.eachCongestion(ctx, d, 1, 4)
		})
	}
}

// withoutDelay measures one, four and sixteen streams of two congestion controls over the bare cable.
func withoutDelay(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) {
	return l.eachCongestion(ctx, d, 1, 4, 16)
}

// eachCongestion measures so many streams of two congestion controls, one after the other. The
// result is the figure of one stream of CUBIC.
func (l *Lab) eachCongestion(ctx context.Context, d time.Duration, streams ...int) (testbed.Sample, error) {
	all := testbed.Sample{More: map[string]float64{}}
	for _, congestion := range []string{"cubic", "bbr"} {
		for _, n := range streams {
			name := fmt.Sprintf("%s%d", congestion, n)
			f := tcpStreams(n)
			f.Congestion = congestion
			if err := l.addLoad(ctx, all.More, name, f, d); err != nil {
				return testbed.Sample{}, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	all.Value = all.More["cubic1_gbps"]
	return all, nil
}

// addLoad adds the figures of a flow and of pings beside it, by a name that they begin with.
func (l *Lab) addLoad(ctx context.Context, more map[string]float64, name string, f testbed.Flow, d time.Duration) error {
	before := l.Dropped()
	rtt, loads, err := testbed.UnderLoad(ctx, l.Lab, d, pathLead, f)
	if err != nil {
		return err
	}
	more[name+"_path_drops"] = float64(l.Dropped() - before)
	more[name+"_gbps"] = loads[0].Gbps()
	more[name+"_retransmitted_percent"] = 100 * loads[0].Retransmitted
	more[name+"_rtt_ms"], more[name+"_rtt_p99_ms"] = rtt.Value, rtt.More["p99_ms"]
	return nil
}

// overBottleneck measures TCP through a bottleneck with a queue, and the delay that it makes.
func overBottleneck(queue int) run {
	link := netlab.Link{Delay: bottleneckDelay, BitsPerSecond: bottleneckRate, Queue: queue}
	return func(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) {
		return l.onLink(ctx, link, func(l *Lab) (testbed.Sample, error) {
			rtt, loads, err := testbed.UnderLoad(ctx, l.Lab, d, pathLead, tcpStreams(4))
			if err != nil {
				return testbed.Sample{}, err
			}
			return testbed.Sample{Value: 1e3 * loads[0].Gbps(), More: map[string]float64{
				"rtt_ms": rtt.Value, "rtt_p99_ms": rtt.More["p99_ms"],
				"retransmitted_percent": 100 * loads[0].Retransmitted, "path_drops": float64(l.Dropped()),
			}}, nil
		})
	}
}

// forwarded takes a figure between hosts behind the sides.
func forwarded(take run) run {
	return func(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) {
		return l.inAnother(ctx, func(c *testbed.Config) { c.Clients = true }, func(l *Lab) (testbed.Sample, error) {
			return take(ctx, l, d)
		})
	}
}

// bothWays measures a flow from A to B, which is the result, and then from B to A. It also counts
// the packets that the kernel drops in front of the TUN devices.
func bothWays(f testbed.Flow) run {
	return func(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) {
		f := f
		f.Duration = d
		before, err := l.DroppedAtTUN()
		if err != nil {
			return testbed.Sample{}, err
		}
		there, err := l.Send(ctx, f)
		if err != nil {
			return testbed.Sample{}, err
		}
		f.Reverse = true
		back, err := l.Send(ctx, f)
		if err != nil {
			return testbed.Sample{}, err
		}
		after, err := l.DroppedAtTUN()
		return testbed.Sample{Value: there.Gbps(), More: map[string]float64{
			"reverse_gbps": back.Gbps(), "cores_per_gbps": there.CoresPerGbps(), "tun_drops": float64(after - before),
			"retransmitted_percent": 100 * there.Retransmitted, "reverse_retransmitted_percent": 100 * back.Retransmitted,
		}}, err
	}
}

// besideSlowPeer measures TCP to B alone, and while another peer of A gets more than the device
// towards it can send. The other peer gets UDP, which is the result, and TCP.
func besideSlowPeer(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) {
	return l.inAnother(ctx, func(*testbed.Config) {}, func(l *Lab) (testbed.Sample, error) {
		slow, err := l.AddPeer(ctx, testbed.PeerConfig{
			Name: "slow", Near: netip.MustParsePrefix("192.168.78.1/24"), Far: netip.MustParsePrefix("192.168.78.2/24"),
			BitsPerSecond: slowRate, Queue: slowQueue,
		})
		if err != nil {
			return testbed.Sample{}, err
		}
		udp := testbed.Flow{To: slow, Config: traffic.Config{Kind: traffic.UDP, Size: testbed.Payload, BitsPerSecond: slowLoad}}
		tcp := tcpStreams(4)
		tcp.To = slow
		more := map[string]float64{}
		for _, s := range []struct {
			name  string
			loads []testbed.Flow
		}{{"alone", nil}, {"udp", []testbed.Flow{udp}}, {"tcp", []testbed.Flow{tcp}}} {
			_, got, err := testbed.UnderLoad(ctx, l.Lab, d, testbed.LoadLead, append([]testbed.Flow{tcpStreams(4)}, s.loads...)...)
			if err != nil {
				return testbed.Sample{}, fmt.Errorf("with the slow peer's load by %s: %w", s.name, err)
			}
			more[s.name+"_gbps"] = got[0].Gbps()
			if len(s.loads) > 0 {
				more[s.name+"_slow_mbps"] = 1e3 * got[1].Gbps()
			}
		}
		return testbed.Sample{Value: more["udp_gbps"], More: more}, nil
	})
}

// rrul is the load of RRUL (Realtime Response Under Load) with the parts that matter here: streams
// both ways, and pings.
func rrul(ctx context.Context, p testbed.Path, d time.Duration) (testbed.Sample, error) {
	back := tcpStreams(4)
	back.Reverse = true
	s, loads, err := testbed.UnderLoad(ctx, p, d, testbed.LoadLead, tcpStreams(4), back)
	if err == nil {
		s.More["there_gbps"], s.More["back_gbps"] = loads[0].Gbps(), loads[1].Gbps()
	}
	return s, err
}
