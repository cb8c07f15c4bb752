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
	// settle is how often changes of the network, and calls of Reconsider, are followed at most. The first is at once.
	settle = 100 * time.Millisecond
	// review is how often the paths in use are looked at without a reason: for what the kernel announces to nobody, such as path
	// MTUs learned, and for neighbours to be confirmed.
	review = 10 * time.Second
	// forget is after how many reviews an unused path is forgotten.
	forget = 30
)

// supervisor keeps sockets, program and paths as the network wants them. All its work is done by one goroutine, whose thread is
// in the Port's network namespace; the others only leave word.
type supervisor struct {
	port          *Port
	config        Config
	mark          atomic.Uint32
	reconsidering atomic.Bool // the way is to be chosen anew
	cancel        context.CancelFunc
	finished      sync.WaitGroup
	closeErr      error // what went wrong at the end

	// The goroutine's own:
	ctx      context.Context
	watcher  *watcher // nil while nothing that changes matters
	deafen   context.CancelFunc
	resolver *resolver
	device   device
	settled  time.Time // before which changes of the network wait
	pending  bool      // whether some do
	reviewAt time.Time // zero: nothing is in use
	idle     map[target]int
	told     outcome       // what Config.Changed was told last
	patience time.Duration // of drain

	mu     sync.Mutex // guards what status reads
	report report
}

// startSupervisor returns when everything was tried once.
func startSupervisor(p *Port, c *Config) (*supervisor, error) {
	home, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("finding the network namespace: %w", err)
	}
	defer home.Close()
	k := &supervisor{port: p, config: *c, idle: map[target]int{}, patience: drainTime}
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

// run keeps its thread, which ends with it: it may be in a namespace that is not the process's.
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
		k.turn(now)
		timer.Stop()
		if next := k.next(); !next.IsZero() {
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
	if err := k.listen(); err != nil {
		k.resolver.nl.Close()
		return err
	}
	return nil
}

// listen begins to watch the network, if that is not done already; rest ends it.
func (k *supervisor) listen() error {
	c := subscriptions{neighbours: k.config.Device != "" && !k.config.NoSockets, queues: k.config.Device != ""}
	if k.watcher != nil && k.watcher.concerns == c {
		return nil
	}
	ctx, cancel := context.WithCancel(k.ctx)
	w, err := watch(ctx, k.port.wake, c)
	if err != nil {
		cancel()
		return err
	}
	k.pending = k.pending || k.watcher != nil // what the one before has not read yet
	k.rest()
	k.watcher, k.deafen = w, cancel
	return nil
}

func (k *supervisor) rest() {
	if k.watcher != nil {
		k.deafen()
		k.watcher.finished.Wait()
		k.watcher = nil
	}
}

// end undoes everything.
func (k *supervisor) end() error {
	errs := []error{k.releaseDevice(errClosed)}
	if k.config.Program != nil {
		errs = append(errs, k.config.Program.Close())
	}
	k.rest()
	k.resolver.nl.Close()
	return errors.Join(errs...)
}

var (
	errClosed  = errors.New("the port is closed")
	errRebound = errors.New("another way was chosen")
	errNoWay   = errors.New("no device is in use")
)

// reconsider takes the Way that is right now, and listens to the network before it asks.
func (k *supervisor) reconsider() {
	if k.config.Choose == nil {
		return
	}
	err := k.listen()
	if err == nil {
		k.useBinding(k.config.Choose())
	}
	if err == nil && k.watcher != nil {
		err = k.listen() // as the new Way wants it
	}
	if err != nil {
		k.pending = true // it is tried again
		k.note(err)
	}
}

// isFinal reports whether no change of the network matters.
func (w *Binding) isFinal() bool { return w.Device == "" && w.Final }

// useBinding has another Way take the place of the present one.
func (k *supervisor) useBinding(w Binding) {
	if w.isFinal() {
		defer k.rest()
	}
	if w == k.config.Binding {
		return
	}
	k.drain()
	_ = k.releaseDevice(errRebound) // what it says is what the kernel has forgotten already
	if old := k.config.Program; old != nil && old != w.Program {
		_ = old.Close()
	}
	k.config.Binding = w
	k.resolver.limit = frameLimit(w.FrameSize)
	k.port.table.clear()
}

// stop ends the keeper.
func (k *supervisor) stop() error {
	k.cancel()
	k.finished.Wait()
	return k.closeErr
}

func (k *supervisor) setMark(mark uint32) {
	k.mark.Store(mark)
	k.port.table.clear()
}

// turn does all there is to do.
func (k *supervisor) turn(now time.Time) {
	changed, hops := k.handleNetworkChange()
	doubt := k.reconsidering.Swap(false)
	k.pending = k.pending || changed || doubt
	follow := k.pending && !now.Before(k.settled)
	if follow {
		k.pending, k.settled = false, now.Add(settle)
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
	case k.due(now):
		k.review(now, era)
	case len(hops) > 0:
		asked = append(asked, k.behind(hops)...)
		fallthrough
	default:
		k.resolve(asked, era)
	}
	if k.reviewAt.IsZero() && k.inUse() {
		k.reviewAt = now.Add(review)
	}
}

// takeChanges returns what has changed since the last call.
func (k *supervisor) handleNetworkChange() (changed bool, hops map[hop]struct{}) {
	if k.watcher == nil {
		return false, nil
	}
	return k.watcher.takeChanges()
}

// next is when the next turn is due, whatever happens; zero is never.
func (k *supervisor) next() time.Time {
	next := k.reviewAt
	if k.pending {
		next = earlier(next, k.settled)
	}
	return earlier(next, k.device.retryAt)
}

// earlier takes the zero time for never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
