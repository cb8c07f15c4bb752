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

// Screen is the state between two samples: *top.Frame of an interface or *top.SpreadFrame of a device.
type Screen interface {
	Sort(o top.Order, reverse bool)
	Render(o top.Options) string
	MaxScroll(o top.Options) int // the largest Options.Scroll that makes a difference
}

// Config configures the terminal view.
type Config struct {
	// Next takes a sample and compares it with the previous one. It is called by one goroutine at
	// a time. If it fails, the error is shown with the previous screen, and Next is called again
	// after the interval. Only the view of flows needs the flows of an interface.
	Next     func(flows bool) (Screen, error)
	Interval time.Duration // between samples
	Options  top.Options   // initial options; the terminal sets the size
	In       io.Reader
	Out      io.Writer
	Env      []string // of the terminal: TERM, NO_COLOR, ...
}

// Run shows samples until the user quits or ctx ends, and restores the terminal. It returns at once if the first sample
// fails.
func Run(ctx context.Context, c Config) error {
	first, err := c.Next(c.Options.View == top.Flows)
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
