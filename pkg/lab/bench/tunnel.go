// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// tcpStreams are the numbers of parallel streams that throughput is measured with.
func tcpStreams() []int { return []int{1, 4, 16} }

// stretchNDR is the time for which each rate is offered in the search for the highest one without loss (no-drop rate).
const stretchNDR = 500 * time.Millisecond

// raw measures TCP over the cable without a tunnel: the limit of the machine's network stack and the generator.
func (s *suite) raw(ctx context.Context) error {
	return s.inLab(ctx, StageRaw, testbed.Config{}, func(lab *labSource) error {
		for _, streams := range tcpStreams() {
			f := Figure{Stage: StageRaw, Streams: streams, What: "TCP without a tunnel, " + term.Count(streams, "stream")}
			if err := s.tcp(ctx, lab, f); err != nil {
				return err
			}
		}
		return nil
	})
}

// tunnel measures the tunnel with each number of lanes, and with the last of them also the figures of others.
func (s *suite) tunnel(ctx context.Context) error {
	for i, lanes := range s.cfg.Lanes {
		err := s.inLab(ctx, StageTunnel, testbed.Config{Daemon: s.cfg.Daemon(lanes)}, func(lab *labSource) error {
			for _, streams := range tcpStreams() {
				f := Figure{
					Stage: StageTunnel, Streams: streams, Lanes: lanes,
					What: "TCP, " + term.Count(streams, "stream") + ", " + term.Count(lanes, "lane"),
				}
				if err := s.tcp(ctx, lab, f); err != nil {
					return err
				}
			}
			if i < len(s.cfg.Lanes)-1 {
				return nil
			}
			return s.others(ctx, lab, lanes)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tcp measures one figure of throughput, with its cost.
func (s *suite) tcp(ctx context.Context, lab *labSource, f Figure) error {
	f.Name, f.Unit = "tcp", "Gbit/s"
	return s.take(ctx, []Figure{f}, func(ctx context.Context, f []Figure) error {
		l, err := lab.get(ctx)
		if err != nil {
			return err
		}
		flow := testbed.Flow{Config: traffic.Config{Kind: traffic.TCP, Streams: f[0].Streams, Duration: s.cfg.Stretch}}
		got, err := testbed.Throughput(flow)(ctx, l, s.cfg.Stretch)
		f[0].Value, f[0].More = got.Value, got.More
		return err
	})
}

// others are the figures that are not throughput.
func (s *suite) others(ctx context.Context, lab *labSource, lanes int) error {
	small, large := testbed.NoDrop(64, testbed.NDRRates()), testbed.NoDrop(testbed.Payload, testbed.NDRRates())
	if s.cfg.Quick {
		small, large = testbed.NoDrop(64, everyThird(testbed.NDRRates())), nil
	}
	for _, m := range []struct {
		name, unit, what string
		stretch          time.Duration
		run              testbed.Measure
	}{
		{"rtt_idle", "ms", "round trip, idle, mean", s.cfg.Stretch, testbed.IdleRTT},
		{"rtt_load", "ms", "round trip under TCP of 4 streams, mean", s.cfg.Stretch, testbed.LoadedRTT},
		{"ndr64", "kpps", "64 B datagrams with under 1 % lost", min(s.cfg.Stretch, stretchNDR), small},
		{"ndr1340", "kpps", "1340 B datagrams with under 1 % lost", min(s.cfg.Stretch, stretchNDR), large},
		{"wakeups", "1/s", "both daemons' context switches, idle", s.cfg.Stretch, testbed.IdleWakeups},
		{"rss", "MiB", "both daemons' peak memory", 0, testbed.PeakMemory},
	} {
		if m.run == nil {
			continue
		}
		f := []Figure{{Stage: StageTunnel, Name: m.name, Unit: m.unit, What: m.what, Lanes: lanes}}
		err := s.take(ctx, f, func(ctx context.Context, f []Figure) error {
			l, err := lab.get(ctx)
			if err != nil {
				return err
			}
			got, err := m.run(ctx, l, m.stretch)
			f[0].Value, f[0].More = got.Value, got.More
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// everyThird is a coarser choice of rates.
func everyThird(rates []float64) (coarse []float64) {
	for i := 0; i < len(rates); i += 3 {
		coarse = append(coarse, rates[i])
	}
	return coarse
}

// labSource makes a lab when its first measurement needs it. A lab that cannot be made is not
// tried again.
type labSource struct {
	cfg testbed.Config
	lab *testbed.Lab
	err error
}

func (s *labSource) get(ctx context.Context) (*testbed.Lab, error) {
	if s.lab == nil && s.err == nil {
		s.lab, s.err = testbed.New(ctx, s.cfg)
	}
	return s.lab, s.err
}

// inLab runs f with a lab, which is gone when it returns.
func (s *suite) inLab(ctx context.Context, stage string, cfg testbed.Config, f func(*labSource) error) error {
	cfg.Queues, cfg.Traffic, cfg.Prefix = runtime.NumCPU(), s.cfg.Traffic, s.cfg.Prefix
	src := &labSource{cfg: cfg}
	err := f(src)
	if src.lab == nil {
		return err
	}
	if closing := src.lab.Close(); closing != nil && ctx.Err() == nil {
		s.endings = append(s.endings, fmt.Errorf("ending the stage %s: %w", stage, closing))
	}
	return err
}
