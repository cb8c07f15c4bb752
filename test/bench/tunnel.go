// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/test/bench/measure"
)

// tunnel is the bed of a real implementation, or of the bare cable.
type tunnel struct {
	lab      *measure.Lab
	measures map[string]measure.Measure
	stretch  time.Duration
}

// opener opens beds by the name of the implementation that runs in them.
type opener struct {
	queues   int
	stretch  time.Duration
	traffic  []string            // the generator's command
	argv     map[string][]string // each implementation's, without the interface's name
	measures []measure.Measure
	quic     string // the program that makes QUIC traffic
}

func (o opener) open(ctx context.Context, implementation string) (bed, error) {
	cfg := testbed.Config{Queues: o.queues, Traffic: o.traffic}
	if implementation != rawName {
		argv, ok := o.argv[implementation]
		if !ok {
			return nil, fmt.Errorf("no command for %s", implementation)
		}
		cfg.Daemon = testbed.Command(argv...)
	}
	lab, err := testbed.New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	t := &tunnel{lab: &measure.Lab{Lab: lab, QUIC: o.quic}, stretch: o.stretch, measures: make(map[string]measure.Measure)}
	for _, m := range o.measures {
		t.measures[m.Name] = m
	}
	return t, nil
}

func (t *tunnel) measure(ctx context.Context, test string) (map[string]float64, error) {
	s, err := t.measures[test].Run(ctx, t.lab, t.stretch)
	if err != nil {
		return nil, err
	}
	figures := map[string]float64{valueFigure: s.Value}
	maps.Copy(figures, s.More)
	return figures, nil
}

func (t *tunnel) Close() error { return t.lab.Close() }
