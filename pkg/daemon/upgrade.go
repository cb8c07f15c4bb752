// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Successor is a process that is to take over.
type Successor struct {
	// Ended delivers what became of it.
	Ended <-chan error
	// Kill ends it at once.
	Kill func()
}

// upgradeTime is how long a successor may take.
const upgradeTime = 30 * time.Second

// errEndedEarly says that a successor has ended and the tunnel is still here.
var errEndedEarly = errors.New("the new daemon ended without taking over")

// endedEarly adds what became of the successor, nil if it has reported success.
func endedEarly(cause error) error {
	if cause == nil {
		return errEndedEarly
	}
	return fmt.Errorf("%w: %w", errEndedEarly, cause)
}

// errLate says that a successor took longer than upgradeTime.
var errLate = fmt.Errorf("it has not taken over within %s: %w", upgradeTime, syscall.ETIMEDOUT)

// upgrade implements uapi.Server.Upgrade. The end of ctx is this daemon's, which has a successor that hangs not keep it.
func (d *Daemon) upgrade(ctx context.Context, path string) (answered func(), err error) {
	if err := d.await(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.upgrades.Done()
		}
	}()
	if !d.upgrading.TryLock() {
		return nil, fmt.Errorf("upgrading %s twice: %w", d.Name(), syscall.EBUSY)
	}
	defer d.upgrading.Unlock()
	d.log.Info("starting the new daemon", "program", path)
	next, err := d.o.Upgrade(path, d.Name())
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, upgradeTime, errLate)
	defer cancel()
	select {
	case <-d.given:
	case cause := <-next.Ended:
		err = d.unlessGiven(func() error { return endedEarly(cause) })
	case <-ctx.Done():
		err = d.unlessGiven(func() error {
			next.Kill()
			<-next.Ended
			return fmt.Errorf("waiting for the new daemon, which was ended: %w", context.Cause(ctx))
		})
	}
	if err != nil {
		return nil, err
	}
	<-d.given
	return d.upgrades.Done, nil
}

// await has the Daemon not end before upgrades.Done is called. It is an error once another process has the tunnel.
func (d *Daemon) await() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.refuseOnceLeft("upgrading"); err != nil {
		return err
	}
	d.upgrades.Add(1)
	return nil
}

// unlessGiven calls f if the tunnel is still here, and returns what f does. It waits for a hand-over that is under way, and none
// begins meanwhile: who has been given the tunnel must not be killed for being late.
func (d *Daemon) unlessGiven(f func() error) error {
	d.handing.Lock()
	defer d.handing.Unlock()
	d.mu.RLock()
	left := d.left
	d.mu.RUnlock()
	if left {
		return nil
	}
	return f()
}
