// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"
)

const (
	// minChangeInterval is the minimum time between two reactions to network changes or Reconsider. The first reaction
	// is immediate.
	minChangeInterval = 100 * time.Millisecond
	// defaultReviewInterval is the time between two reviews of the paths in use. Reviews find changes that the kernel does not
	// announce, such as expired path MTUs, and confirm neighbours.
	defaultReviewInterval = 10 * time.Second
	// maxIdleReviews is the number of reviews after which an unused path is deleted.
	maxIdleReviews = 30
)

// supervisor adapts sockets, program and paths to the network. One goroutine does all its work; its thread is in the
// Port's network namespace. Other goroutines only leave requests.
type supervisor struct {
	port          *Port
	config        Config
	mark          atomic.Uint32
	reconsidering atomic.Bool // call Config.Choose
	cancel        context.CancelFunc
	finished      sync.WaitGroup
	closeErr      error // error of the final cleanup

	// Fields of the goroutine:
	ctx          context.Context
	watcher      *watcher // nil while no change of the network matters
	stopWatcher  context.CancelFunc
	resolver     *resolver
	device       device
	followAt     time.Time     // changes of the network wait until then
	pending      bool          // changes wait
	reviewAt     time.Time     // zero: no path is in use
	lastOutcome  outcome       // the last one reported to Config.Changed
	drainTimeout time.Duration // time limit of drain

	mu     sync.Mutex // guards report
	report deviceReport
}

// startSupervisor starts the goroutine. It returns after the first attempt to set up everything.
func startSupervisor(p *Port, c *Config) (*supervisor, error) {
	home, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("finding the network namespace: %w", err)
	}
	defer home.Close()
	sup := &supervisor{port: p, config: *c, drainTimeout: defaultDrainTimeout}
	sup.mark.Store(c.Mark)
	sup.report.lanes = make([]laneReport, len(p.lanes))
	sup.ctx, sup.cancel = context.WithCancel(context.Background())
	ready := make(chan error)
	sup.finished.Go(func() { sup.run(home, ready) })
	if err := <-ready; err != nil {
		sup.cancel()
		sup.finished.Wait()
		return nil, err
	}
	return sup, nil
}

// run is the goroutine's main function. It locks its thread and never unlocks it, so the thread ends with the
// goroutine: it may be in another network namespace than the process.
func (sup *supervisor) run(home netns.NsHandle, ready chan<- error) {
	runtime.LockOSThread()
	err := sup.begin(home)
	if err == nil {
		sup.reconsider()
		sup.repair(time.Now())
		sup.publishChange()
	}
	ready <- err
	if err != nil {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for sup.ctx.Err() == nil {
		select {
		case <-sup.ctx.Done():
		case <-sup.port.wake:
		case <-timer.C:
		}
		now := time.Now()
		sup.runOnce(now)
		timer.Stop()
		if next := sup.nextDeadline(); !next.IsZero() {
			timer.Reset(max(next.Sub(now), 0))
		}
	}
	sup.closeErr = sup.end()
}

func (sup *supervisor) begin(home netns.NsHandle) error {
	here, err := netns.Get()
	if err != nil {
		return fmt.Errorf("finding the network namespace: %w", err)
	}
	defer here.Close()
	if !here.Equal(home) {
		if err := netns.Set(home); err != nil {
			return fmt.Errorf("entering the network namespace: %w", err)
		}
	}
	if sup.resolver, err = newResolver(sup.config.FrameSize); err != nil {
		return err
	}
	if err := sup.startWatcher(); err != nil {
		sup.resolver.nl.Close()
		return err
	}
	return nil
}

// startWatcher starts a watcher, for a device if the Binding has one, unless it runs already. closeWatcher ends it.
func (sup *supervisor) startWatcher() error {
	ofDevice := sup.config.Device != ""
	if sup.watcher != nil && sup.watcher.ofDevice == ofDevice {
		return nil
	}
	ctx, cancel := context.WithCancel(sup.ctx)
	w, err := watch(ctx, sup.port.wake, ofDevice)
	if err != nil {
		cancel()
		return err
	}
	sup.pending = sup.pending || sup.watcher != nil // the former watcher may have unread messages
	sup.closeWatcher()
	sup.watcher, sup.stopWatcher = w, cancel
	return nil
}

func (sup *supervisor) closeWatcher() {
	if sup.watcher != nil {
		sup.stopWatcher()
		sup.watcher.finished.Wait()
		sup.watcher = nil
	}
}

// end releases everything.
func (sup *supervisor) end() error {
	errs := []error{sup.releaseDevice(errClosed)}
	if sup.config.Program != nil {
		errs = append(errs, sup.config.Program.Close())
	}
	sup.closeWatcher()
	sup.resolver.nl.Close()
	return errors.Join(errs...)
}

var (
	errClosed   = errors.New("the port is closed")
	errRebound  = errors.New("AF_XDP was reconfigured: another device or mode")
	errNoDevice = errors.New("no device in use")
)

// reconsider applies the Binding that Config.Choose returns. The watcher runs before the call, so that no change is
// missed.
func (sup *supervisor) reconsider() {
	if sup.config.Choose == nil {
		return
	}
	err := sup.startWatcher()
	if err == nil {
		sup.useBinding(sup.config.Choose())
	}
	if err == nil && sup.watcher != nil {
		err = sup.startWatcher() // for the new Binding
	}
	if err != nil {
		sup.pending = true // retry later
		sup.recordDevice(err)
	}
}

// isFinal reports whether no change of the network matters.
func (b *Binding) isFinal() bool { return b.Device == "" && b.Final }

// useBinding replaces the current Binding.
func (sup *supervisor) useBinding(b Binding) {
	if b.isFinal() {
		defer sup.closeWatcher()
	}
	if b == sup.config.Binding {
		return
	}
	sup.drain()
	_ = sup.releaseDevice(errRebound) // the kernel has released the resources even after an error
	if old := sup.config.Program; old != nil && old != b.Program {
		_ = old.Close()
	}
	sup.config.Binding = b
	sup.resolver.maxPacket = maxIPPacket(b.FrameSize)
	sup.port.table.clear()
}

// stop ends the supervisor, and waits for it.
func (sup *supervisor) stop() error {
	sup.cancel()
	sup.finished.Wait()
	return sup.closeErr
}

func (sup *supervisor) setMark(mark uint32) {
	sup.mark.Store(mark)
	sup.port.table.clear()
}

// runOnce does all work that is pending.
func (sup *supervisor) runOnce(now time.Time) {
	changed, hops, tooBig := sup.takeChanges()
	requested := sup.reconsidering.Swap(false)
	sup.pending = sup.pending || changed || requested
	if sup.reviewDue(now) {
		sup.checkTransmits()
	}
	follow := sup.pending && !now.Before(sup.followAt)
	if follow {
		sup.pending, sup.followAt = false, now.Add(minChangeInterval)
		sup.reconsider()
		sup.device.resetBackoff()
	}
	if follow || sup.device.needsRepair(sup.port.lanes, now) {
		sup.repair(now)
		sup.publishChange()
	}
	sup.publishSources(now)
	unresolved := sup.port.table.takeUnresolved()
	switch {
	case follow:
		sup.resolve(sup.port.table.all())
	case sup.reviewDue(now):
		sup.review(now)
	case len(hops) > 0 || len(tooBig) > 0:
		unresolved = append(unresolved, sup.pathsBehind(hops, tooBig)...)
		fallthrough
	default:
		sup.resolve(unresolved)
	}
	if sup.reviewAt.IsZero() && sup.inUse() {
		sup.reviewAt = now.Add(sup.reviewInterval())
	}
}

func (sup *supervisor) reviewInterval() time.Duration {
	return cmp.Or(sup.config.reviewInterval, defaultReviewInterval)
}

// takeChanges returns the changes since the last call.
func (sup *supervisor) takeChanges() (changed bool, hops map[hop]struct{}, tooBig map[netip.Addr]struct{}) {
	if sup.watcher == nil {
		return false, nil, nil
	}
	changed, hops = sup.watcher.takeChanges()
	return changed, hops, sup.watcher.takeTooBig()
}

// nextDeadline returns the time of the next run, or zero if none is scheduled.
func (sup *supervisor) nextDeadline() time.Time {
	next := sup.reviewAt
	if sup.pending {
		next = earlier(next, sup.followAt)
	}
	return earlier(next, sup.device.retryAt)
}

// earlier returns the earlier time. Zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
