// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// deviceFollower keeps the programs of one device attached and configured.
type deviceFollower struct {
	wanted       spreader.Config // the last requested configuration
	applied      spreader.Config // the last configuration that took effect
	changeFailed bool            // the change to wanted failed
	log          *slog.Logger
	lastWarnings []string // of the last report; repeated warnings are logged once
	cancel       context.CancelFunc
	changes      chan spreader.Change
	done         chan struct{}
	err          error        // when done: why it ended; programs.ErrOtherLayout unless it was stopped
	repairs      atomic.Int64 // since the last takeRepairs
	gatherMisses atomic.Bool  // packets may come by a device that refused the gather program, or another program may accept them first
	reportCount  atomic.Int64
}

// followDevice attaches and returns. A goroutine then repairs the attachment until stop, and calls trigger after each repair.
func followDevice(ctx context.Context, host *spreader.Host, cfg spreader.Config, log *slog.Logger, trigger func()) (*deviceFollower, error) {
	ctx, cancel := context.WithCancel(ctx)
	f := &deviceFollower{wanted: cfg, applied: cfg, log: log, cancel: cancel, changes: make(chan spreader.Change), done: make(chan struct{})}
	first := make(chan error, 2)
	go func() {
		defer close(f.done)
		f.err = host.Follow(ctx, spreader.FollowOptions{Config: cfg, Changes: f.changes, Log: log, Attached: func(r spreader.Report) {
			f.logReport(r)
			if f.reportCount.Add(1) == 1 {
				first <- nil
				return
			}
			f.repairs.Add(1)
			trigger()
		}})
		first <- f.err
		if f.err != nil && f.reportCount.Load() > 0 {
			trigger()
		}
	}()
	if err := <-first; err != nil {
		cancel()
		<-f.done
		return nil, err
	}
	return f, nil
}

// ended returns why the follower has ended by itself, nil while it runs.
func (f *deviceFollower) ended() error {
	select {
	case <-f.done:
		return f.err
	default:
		return nil
	}
}

func (f *deviceFollower) logReport(r spreader.Report) {
	f.gatherMisses.Store(len(r.GatherBehind)+len(r.NotOn) > 0)
	f.log.Info("spread attached", "device", r.Device, "interface", r.Tunnel, "port", r.Port, "source_ports", len(r.Lanes),
		"peers", len(r.Peers), "gather_only_peers", len(r.GatherOnly), "spread", r.Spread, "gather", r.Gather)
	for _, warning := range r.Warnings {
		if !slices.Contains(f.lastWarnings, warning) {
			f.log.Warn("spread attached, but with a restriction", "device", r.Device, "reason", warning)
		}
	}
	f.lastWarnings = r.Warnings
}

// change applies a configuration to the attached programs. After an error, the previous
// configuration stays in effect as far as possible. ctx must end no later than the context of
// followDevice, whose goroutine receives the change.
func (f *deviceFollower) change(ctx context.Context, cfg spreader.Config) error {
	f.wanted, f.changeFailed = cfg, true
	result := make(chan error, 1)
	c := spreader.Change{Config: cfg, Done: func(r spreader.Report, err error) {
		if err == nil {
			f.logReport(r)
		}
		result <- err
	}}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-f.done:
		return f.err
	case f.changes <- c:
	}
	if err := <-result; err != nil {
		return fmt.Errorf("%w (the previous configuration stays, and new nodes are not gathered from)", err)
	}
	f.applied, f.changeFailed = cfg, false
	return nil
}

// gatheringPeers returns how many peers of a Config are gathered from with its ports: none while packets may miss
// the gather program.
func (f *deviceFollower) gatheringPeers(cfg spreader.Config) (n int) {
	if f.gatherMisses.Load() {
		return 0
	}
	for at, ports := range cfg.PeerPortRanges {
		if f.applied.PeerPortRanges[at] == ports {
			n++
		}
	}
	return n
}

// stop ends the goroutine. The programs stay attached.
func (f *deviceFollower) stop() {
	f.cancel()
	<-f.done
}

// takeRepairs returns the number of repairs since the last call.
func (f *deviceFollower) takeRepairs() int { return int(f.repairs.Swap(0)) }
