// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netlab"
)

// demoDaemon is the process that serves one end of the tunnel.
type demoDaemon struct {
	cmd      *netlab.Command
	log      tailWriter
	stopping atomic.Bool
	exited   chan struct{}
	err      error // of the exit; after exited
}

// startDemoDaemon starts the process in the side's host. Unless stop was called first, its end calls died.
func startDemoDaemon(ctx context.Context, s *demoSide, argv []string, died context.CancelCauseFunc) (*demoDaemon, error) {
	// Not ctx itself: stop ends the daemon, and it also runs when ctx is done.
	d := &demoDaemon{cmd: s.host.Command(context.WithoutCancel(ctx), argv...), exited: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the daemon on %s: %w", s.name, err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.exited)
		if !d.stopping.Load() {
			died(fmt.Errorf("the daemon on %s ended by itself (%s)%s", s.name, d.cmd.ProcessState, d.lastWords()))
		}
	}()
	return d, nil
}

// stop asks the daemon to end, kills it if it does not in time, and returns why its end was not a good one.
func (d *demoDaemon) stop() error {
	d.stopping.Store(true)
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.exited:
	case <-time.After(demoStopTimeout):
		_ = d.cmd.Process.Kill()
		<-d.exited
		return errors.Join(fmt.Errorf("it did not end within %s of SIGTERM", demoStopTimeout), d.err)
	}
	return d.err
}

// lastWords is what the daemon wrote last, indented, to be put behind an error.
func (d *demoDaemon) lastWords() string {
	text := d.log.String()
	if text == "" {
		return ""
	}
	return "; it last wrote:\n  " + strings.ReplaceAll(text, "\n", "\n  ")
}

const tailLen = 2048

// tailWriter keeps the end of what is written to it.
type tailWriter struct {
	mu  sync.Mutex
	buf []byte
}

// Write never fails.
func (t *tailWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*tailLen {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-tailLen:]...)
	}
	return len(p), nil
}

// String returns the last whole lines.
func (t *tailWriter) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := string(t.buf)
	if len(text) > tailLen {
		text = text[len(text)-tailLen:]
		if i := strings.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	return strings.TrimSpace(text)
}
