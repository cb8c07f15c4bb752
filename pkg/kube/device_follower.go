// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/adopt"
)

// followers keeps the programs of one device as they should be.
type deviceFollower struct {
	wanted       adopt.Config // that is wanted
	applied      adopt.Config // that came to be; where what is wanted does not, this goes on
	changeFailed bool         // to become what is wanted
	log          *slog.Logger
	lastWarnings []string // lately: said again at each look, they are logged once
	cancel       context.CancelFunc
	changes      chan adopt.Change
	done         chan struct{}
	repairs      atomic.Int64 // since the last mended
	reportCount  atomic.Int64
}

// followDevice attaches, and goes on in a goroutine. again is called when that finds something changed.
func followDevice(ctx context.Context, host *adopt.Host, cfg adopt.Config, log *slog.Logger, again func()) (*deviceFollower, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &deviceFollower{wanted: cfg, applied: cfg, log: log, cancel: cancel, changes: make(chan adopt.Change), done: make(chan struct{})}
	first := make(chan error, 1)
	go func() {
		defer close(w.done)
		first <- host.Follow(ctx, adopt.Course{Config: cfg, Changes: w.changes, Log: log, Attached: func(r adopt.Report) {
			w.logReport(r)
			if w.reportCount.Add(1) == 1 {
				first <- nil
				return
			}
			w.repairs.Add(1)
			again()
		}})
	}()
	if err := <-first; err != nil {
		cancel()
		<-w.done
		return nil, err
	}
	return w, nil
}

func (w *deviceFollower) logReport(r adopt.Report) {
	w.log.Info("spreading", "device", r.Device, "tunnel", r.Tunnel, "port", r.Port, "ports", len(r.Lanes),
		"peers", len(r.Peers), "quiet", len(r.Quiet), "spread", r.Spread, "gather", r.Gather)
	for _, warning := range r.Warnings {
		if !slices.Contains(w.lastWarnings, warning) {
			w.log.Warn("not all is spread as wanted", "device", r.Device, "why", warning)
		}
	}
	w.lastWarnings = r.Warnings
}

// change makes cfg what is wanted, with the programs as they are. An error leaves in place what was before, as far as it goes. ctx is to
// be done when that of watch is: nobody takes changes then.
func (w *deviceFollower) change(ctx context.Context, cfg adopt.Config) error {
	w.wanted, w.changeFailed = cfg, true
	result := make(chan error, 1)
	c := adopt.Change{Config: cfg, Done: func(r adopt.Report, err error) {
		if err == nil {
			w.logReport(r)
		}
		result <- err
	}}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case w.changes <- c:
	}
	if err := <-result; err != nil {
		return fmt.Errorf("%w; what was before goes on, and nodes that are new are not gathered from", err)
	}
	w.applied, w.changeFailed = cfg, false
	return nil
}

// gatheringPeers is how many of the peers of a Config are gathered from as it says.
func (w *deviceFollower) gatheringPeers(cfg adopt.Config) (n int) {
	for at, ports := range cfg.PortsOf {
		if w.applied.PortsOf[at] == ports {
			n++
		}
	}
	return n
}

// stop leaves all in place.
func (w *deviceFollower) stop() {
	w.cancel()
	<-w.done
}

// takeRepairs is how often something had to be put right since the last call.
func (w *deviceFollower) takeRepairs() int { return int(w.repairs.Swap(0)) }
