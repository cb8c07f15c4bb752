// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"context"
	"errors"
	"fmt"
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
	// reviewInterval is the time between two reviews of the paths in use. Reviews find changes that the kernel does not
	// announce, such as learned path MTUs, and confirm neighbours.
	reviewInterval = 10 * time.Second
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
	followAt     time.Time // changes of the network wait until then
	pending      bool      // changes wait
	reviewAt     time.Time // zero: no path is in use
	idleReviews  map[target]int
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
	k := &supervisor{port: p, config: *c, idleReviews: map[target]int{}, drainTimeout: defaultDrainTimeout}
	k.mark.Store(c.Mark)
	k.report.lanes = make([]laneReport, len(p.lanes))
	k.ctx, k.cancel = context.WithCancel(context.Background())
	ready := make(chan error)
	k.finished.Go(func() { k.run(home, ready) })
	if err := <-ready; err != nil {
		k.cancel()
		k.finished.Wait()
		return nil, err
	}
	return k, nil
}

// run is the goroutine's main function. It locks its thread and never unlocks it, so the thread ends with the
// goroutine: it may be in another network namespace than the process.
func (k *supervisor) run(home netns.NsHandle, ready chan<- error) {
	runtime.LockOSThread()
	err := k.begin(home)
	if err == nil {
		k.reconsider()
		k.repair(time.Now())
		k.publishChange()
	}
	ready <- err
	if err != nil {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for k.ctx.Err() == nil {
		select {
		case <-k.ctx.Done():
		case <-k.port.wake:
		case <-timer.C:
		}
		now := time.Now()
		k.runOnce(now)
		timer.Stop()
		if next := k.nextDeadline(); !next.IsZero() {
			timer.Reset(max(next.Sub(now), 0))
		}
	}
	k.closeErr = k.end()
}

func (k *supervisor) begin(home netns.NsHandle) error {
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
	if k.resolver, err = newResolver(k.config.FrameSize); err != nil {
		return err
	}
	if err := k.startWatcher(); err != nil {
		k.resolver.nl.Close()
		return err
	}
	return nil
}

// startWatcher starts a watcher with the subscriptions that the Binding needs, unless it runs already. closeWatcher
// ends it.
func (k *supervisor) startWatcher() error {
	c := subscriptions{neighbours: k.config.Device != "" && !k.config.NoSockets, queues: k.config.Device != ""}
	if k.watcher != nil && k.watcher.subscriptions == c {
		return nil
	}
	ctx, cancel := context.WithCancel(k.ctx)
	w, err := watch(ctx, k.port.wake, c)
	if err != nil {
		cancel()
		return err
	}
	k.pending = k.pending || k.watcher != nil // the former watcher may have unread messages
	k.closeWatcher()
	k.watcher, k.stopWatcher = w, cancel
	return nil
}

func (k *supervisor) closeWatcher() {
	if k.watcher != nil {
		k.stopWatcher()
		k.watcher.finished.Wait()
		k.watcher = nil
	}
}

// end releases everything.
func (k *supervisor) end() error {
	errs := []error{k.releaseDevice(errClosed)}
	if k.config.Program != nil {
		errs = append(errs, k.config.Program.Close())
	}
	k.closeWatcher()
	k.resolver.nl.Close()
	return errors.Join(errs...)
}

var (
	errClosed   = errors.New("the port is closed")
	errRebound  = errors.New("another binding was chosen")
	errNoDevice = errors.New("no device in use")
)

// reconsider applies the Binding that Config.Choose returns. The watcher runs before the call, so that no change is
// missed.
func (k *supervisor) reconsider() {
	if k.config.Choose == nil {
		return
	}
	err := k.startWatcher()
	if err == nil {
		k.useBinding(k.config.Choose())
	}
	if err == nil && k.watcher != nil {
		err = k.startWatcher() // with the subscriptions of the new Binding
	}
	if err != nil {
		k.pending = true // retry later
		k.recordDevice(err)
	}
}

// isFinal reports whether no change of the network matters.
func (b *Binding) isFinal() bool { return b.Device == "" && b.Final }

// useBinding replaces the present Binding.
func (k *supervisor) useBinding(b Binding) {
	if b.isFinal() {
		defer k.closeWatcher()
	}
	if b == k.config.Binding {
		return
	}
	k.drain()
	_ = k.releaseDevice(errRebound) // the kernel has released the resources even after an error
	if old := k.config.Program; old != nil && old != b.Program {
		_ = old.Close()
	}
	k.config.Binding = b
	k.resolver.maxPacket = maxIPPacket(b.FrameSize)
	k.port.table.clear()
}

// stop ends the supervisor, and waits for it.
func (k *supervisor) stop() error {
	k.cancel()
	k.finished.Wait()
	return k.closeErr
}

func (k *supervisor) setMark(mark uint32) {
	k.mark.Store(mark)
	k.port.table.clear()
}

// runOnce does all work that is pending.
func (k *supervisor) runOnce(now time.Time) {
	changed, hops := k.takeChanges()
	doubt := k.reconsidering.Swap(false)
	k.pending = k.pending || changed || doubt
	follow := k.pending && !now.Before(k.followAt)
	if follow {
		k.pending, k.followAt = false, now.Add(minChangeInterval)
		k.reconsider()
		k.device.resetBackoff()
	}
	if follow || k.device.needsRepair(k.port.lanes, now) {
		k.repair(now)
		k.publishChange()
	}
	asked, era := k.port.table.takeUnresolved()
	switch {
	case follow:
		k.resolve(k.port.table.targets(), era)
	case k.reviewDue(now):
		k.review(now, era)
	case len(hops) > 0:
		asked = append(asked, k.targetsBehind(hops)...)
		fallthrough
	default:
		k.resolve(asked, era)
	}
	if k.reviewAt.IsZero() && k.inUse() {
		k.reviewAt = now.Add(reviewInterval)
	}
}

// takeChanges returns the changes since the last call.
func (k *supervisor) takeChanges() (changed bool, hops map[hop]struct{}) {
	if k.watcher == nil {
		return false, nil
	}
	return k.watcher.takeChanges()
}

// nextDeadline returns the time of the next run, or zero if none is scheduled.
func (k *supervisor) nextDeadline() time.Time {
	next := k.reviewAt
	if k.pending {
		next = earlier(next, k.followAt)
	}
	return earlier(next, k.device.retryAt)
}

// earlier returns the earlier time. Zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
