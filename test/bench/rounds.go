// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

// bed is one implementation, running between two namespaces, to be measured. A test that fails leaves it usable for the
// next as far as the implementation still runs.
type bed interface {
	measure(ctx context.Context, test string) (map[string]float64, error)
	io.Closer
}

// turn is one part of a round. Its implementations are up at the same time and take every test one
// right after the other, while all but one of them are idle.
type turn struct {
	round           int // from 1
	versus          string
	implementations []string
	tests           []string // nil for all
}

// turns orders a whole run. Each round has the bare cable by itself, then ropewalk and the first
// peer, ropewalk and the second, and so on. In every other round the peer comes before ropewalk,
// in case the first has an advantage.
func turns(rounds int, peers []string, raw bool) []turn {
	var list []turn
	for round := 1; round <= rounds; round++ {
		if raw {
			list = append(list, turn{round: round, versus: rawName, implementations: []string{rawName}})
		}
		for _, p := range peers {
			pair := []string{ropewalkName, p}
			if round%2 == 0 {
				slices.Reverse(pair)
			}
			list = append(list, turn{round: round, versus: p, implementations: pair})
		}
	}
	return list
}

// step is one test of one implementation in a turn.
type step struct {
	round                        int
	versus, implementation, test string
}

// steps alternates between the implementations test by test: the figures of a pair are seconds apart.
func (t turn) steps(tests []string) []step {
	var list []step
	if t.tests != nil {
		tests = t.tests
	}
	for _, test := range tests {
		for _, i := range t.implementations {
			list = append(list, step{t.round, t.versus, i, test})
		}
	}
	return list
}

// runner takes all turns.
type runner struct {
	turns []turn
	tests []string
	open  func(ctx context.Context, implementation string) (bed, error)
	// before and after are called around each step, and found with its sample in between.
	before, after func(step)
	found         func(sample) error
	whole         func(round int) error // called at the end of each round
	warn          func(error)
}

// run takes all turns until the end, or until an error. An error is the end of ctx, a lab in which
// neither the cable nor ropewalk comes up, or found's or whole's. A peer's failure is an error in
// its samples.
func (r *runner) run(ctx context.Context) error {
	for i, t := range r.turns {
		if err := r.take(ctx, t); err != nil {
			return err
		}
		if last := i+1 == len(r.turns) || r.turns[i+1].round > t.round; !last {
			continue
		}
		if err := r.whole(t.round); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) take(ctx context.Context, t turn) error {
	beds, err := r.openAll(ctx, t)
	defer func() {
		for _, b := range beds {
			if err := b.Close(); err != nil {
				r.warn(err)
			}
		}
	}()
	if err != nil {
		return err
	}
	for _, s := range t.steps(r.tests) {
		r.before(s)
		got, applies := s.take(ctx, beds[s.implementation])
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.after(s)
		if !applies {
			continue
		}
		if err := r.found(got); err != nil {
			return err
		}
	}
	return nil
}

// openAll starts the turn's implementations. A peer that does not start stands in the map as the error that it gives to
// every test.
func (r *runner) openAll(ctx context.Context, t turn) (map[string]bed, error) {
	beds := make(map[string]bed)
	for _, i := range t.implementations {
		b, err := r.open(ctx, i)
		switch {
		case err == nil:
			beds[i] = b
		case ctx.Err() != nil:
			return beds, context.Cause(ctx)
		case i == ropewalkName || i == rawName:
			return beds, fmt.Errorf("starting %s: %w", i, err)
		default:
			err = fmt.Errorf("starting %s: %w", i, err)
			r.warn(err)
			beds[i] = brokenBed{err}
		}
	}
	return beds, nil
}

// take measures; applies is false where there is nothing to measure, as the memory of a cable.
func (s step) take(ctx context.Context, b bed) (got sample, applies bool) {
	got = sample{Round: s.round, Versus: s.versus, Implementation: s.implementation, Test: s.test}
	figures, err := b.measure(ctx, s.test)
	if err != nil {
		got.Error = err.Error()
	}
	got.Figures = figures
	return got, !errors.Is(err, testbed.ErrNoDaemon)
}

// brokenBed is an implementation that did not start.
type brokenBed struct{ err error }

func (b brokenBed) measure(context.Context, string) (map[string]float64, error) { return nil, b.err }

func (brokenBed) Close() error { return nil }
