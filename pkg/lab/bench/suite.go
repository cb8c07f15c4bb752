// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

// Config configures Run.
type Config struct {
	// Stages to run; empty means all.
	Stages []string
	// Stretch is how long each stretch of traffic lasts; 0 means two seconds.
	Stretch time.Duration
	// Quick leaves out what takes longest and steps more coarsely.
	Quick bool
	// Lanes are the numbers of lanes to run the tunnel with; empty means 1, 2, 4 and so on up to the number of cores.
	Lanes []int
	// Daemon gives the implementation for a number of lanes. Stages with a tunnel need it.
	Daemon func(lanes int) testbed.Daemon
	// Traffic and Prefix are as in testbed.Config.
	Traffic []string
	Prefix  string
	// Progress, if set, is called before each measurement by the goroutine that called Run.
	Progress func(Progress)
}

// Progress describes the next measurement.
type Progress struct {
	Stage, What string
	Done, Total int // measurements
}

func (c *Config) complete() error {
	for _, s := range c.Stages {
		if !slices.Contains(Stages(), s) {
			return fmt.Errorf("no stage %q: the stages are %v", s, Stages())
		}
	}
	if len(c.Stages) == 0 {
		c.Stages = Stages()
	}
	if c.Prefix == "" {
		c.Prefix = testbed.DefaultPrefix
	}
	if c.Stretch == 0 {
		c.Stretch = 2 * time.Second
	}
	if len(c.Lanes) == 0 {
		c.Lanes = lanesUpTo(runtime.NumCPU())
	}
	if c.Daemon == nil && slices.Contains(c.Stages, StageTunnel) {
		return errors.New("measuring a tunnel: no daemon to run it")
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	return nil
}

// lanesUpTo doubles from 1 and ends with the number of cores.
func lanesUpTo(cores int) (lanes []int) {
	for n := 1; n < cores; n *= 2 {
		lanes = append(lanes, n)
	}
	return append(lanes, cores)
}

// Run measures a machine, stage by stage. A failed measurement is a Figure with an Error. Run returns no Report when
// ctx is done, or with an error that wraps netlab.ErrPrivileges. An error beside a Report names a daemon that failed at
// exit, or a resource that could not be removed.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	plan := &suite{cfg: cfg, dry: true}
	if err := plan.run(ctx); err != nil {
		return nil, err
	}
	s := &suite{cfg: cfg, total: plan.total, report: Report{
		Schema: Schema, Machine: thisMachine(), Seconds: cfg.Stretch.Seconds(),
	}}
	s.report.Machine.Busy = busyPercent(ctx, s.report.Machine.Cores)
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	if v, ok := NewVerdict(PartsOf(&s.report)); ok {
		s.report.Verdict = &v
	}
	return &s.report, errors.Join(s.endings...)
}

// suite is one Run.
type suite struct {
	cfg         Config
	dry         bool // only count
	done, total int
	report      Report
	endings     []error // of labs that did not end well
}

func (s *suite) run(ctx context.Context) error {
	stages := map[string]func(context.Context) error{
		StageCrypto: s.crypto, StageTUN: s.tun, StageUnderlay: s.underlay, StageRaw: s.raw, StageTunnel: s.tunnel,
	}
	for _, name := range Stages() {
		if !slices.Contains(s.cfg.Stages, name) {
			continue
		}
		if err := stages[name](ctx); err != nil {
			return err
		}
	}
	return nil
}

// take makes one measurement of one or more figures: f fills in the values. It fails only if no later
// measurement can succeed either.
func (s *suite) take(ctx context.Context, figures []Figure, f func(context.Context, []Figure) error) error {
	if s.dry {
		s.total++
		return nil
	}
	s.cfg.Progress(Progress{Stage: figures[0].Stage, What: figures[0].What, Done: s.done, Total: s.total})
	s.done++
	err := f(ctx, figures)
	if ctx.Err() != nil {
		return fmt.Errorf("measuring the machine: %w", context.Cause(ctx))
	}
	if errors.Is(err, netlab.ErrPrivileges) {
		return err
	}
	for i := range figures {
		if err != nil {
			figures[i].Value, figures[i].More, figures[i].Error = 0, nil, err.Error()
		}
	}
	s.report.Figures = append(s.report.Figures, figures...)
	return nil
}
