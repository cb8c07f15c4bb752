// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

// Bounds of the interval between samples.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = time.Minute
)

// Config configures the terminal view.
type Config struct {
	// Sample is called by one goroutine at a time. If it fails, the error is shown with the previous frame, and Sample is
	// called again after the interval. Only samples for the view of flows need them.
	Sample   func(flows bool) (top.Sample, error)
	Interval time.Duration // between samples
	Options  top.Options   // initial options; the terminal sets the size
	In       io.Reader
	Out      io.Writer
	Env      []string // of the terminal: TERM, NO_COLOR, ...
}

// Run shows samples until the user quits or ctx ends, and restores the terminal. It returns at once if the first sample
// fails.
func Run(ctx context.Context, c Config) error {
	first, err := c.Sample(c.Options.View == top.Flows)
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
