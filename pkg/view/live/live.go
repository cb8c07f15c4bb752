// SPDX-License-Identifier: Apache-2.0

// Package live is the terminal of `ropewalk top`: it takes samples, draws frames, and does what keys say.
package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ropewalk/ropewalk/pkg/view"
)

// Bounds of the interval between samples.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = time.Minute
)

// Config says what a terminal shows.
type Config struct {
	// Sample is called by one goroutine at a time. When it fails, the error is shown with what was there before, and it is
	// called again.
	Sample   func() (view.Sample, error)
	Interval time.Duration // between samples
	Options  view.Options  // how to begin; without a size until the terminal has told its own
	In       io.Reader
	Out      io.Writer
	Env      []string // of the terminal: TERM, NO_COLOR, ...
}

// Run shows samples until the user quits or ctx ends, and leaves the terminal as it was. It fails at once where the first
// sample does.
func Run(ctx context.Context, c Config) error {
	first, err := c.Sample()
	if err != nil {
		return err
	}
	program := tea.NewProgram(newModel(c, first), tea.WithContext(ctx), tea.WithInput(c.In), tea.WithOutput(c.Out),
		tea.WithEnvironment(c.Env), tea.WithoutSignalHandler())
	if _, err := program.Run(); err != nil && ctx.Err() == nil && !errors.Is(err, tea.ErrInterrupted) {
		return fmt.Errorf("showing the terminal view: %w", err)
	}
	return nil
}
