// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// Two agents run on a node during a rolling update with maxSurge. The new one takes the running tunnel over (OpenPersistentEngine) and
// carries on. The old one then stands by: it changes and serves nothing, until it is stopped, or until the new one has ended.

var (
	// errHandedOver means that another agent has taken this agent's tunnel over.
	errHandedOver = errors.New("another agent has taken the tunnel over")
	// errServedElsewhere means that another process serves the tunnel and has not handed it over.
	errServedElsewhere = errors.New("another process serves the tunnel and does not hand it over")
)

const (
	// standbyPoll is how often an agent that stands by checks whether the tunnel is still served, and how often a new one checks
	// whether the old one has ended.
	standbyPoll = 50 * time.Millisecond
	// servedElsewherePoll is the time between attempts to take over a tunnel that another process serves.
	servedElsewherePoll = 2 * time.Second
	// lockFile is locked by the agent that is not standing by, in the key directory.
	lockFile = "agent.lock"
)

// instanceLock is held by the agent that reconciles the node. The kernel releases it when the process ends.
type instanceLock struct{ file *os.File }

// try locks the file in a directory without waiting. It reports whether the lock is held.
func (l *instanceLock) try(dir string) (bool, error) {
	if l.file != nil {
		return true, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("locking %s: %w", lockFile, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return false, fmt.Errorf("locking %s: %w", lockFile, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return false, fmt.Errorf("locking %s: %w", lockFile, err)
	}
	l.file = f
	return true, nil
}

// release unlocks the file.
func (l *instanceLock) release() {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

// isTunnelServed reports whether a process serves a tunnel's control socket.
func isTunnelServed(name string) bool {
	c, err := uapi.Dial(name)
	if err != nil {
		return !uapi.IsNotRunning(err)
	}
	_ = c.Close()
	return true
}

// awaitTurn returns when no other agent reconciles this node, or when the other one serves a tunnel that this one can take over. Until
// then the agent reports that it is ready, so that a rolling update stops the other one.
func (a *Agent) awaitTurn(ctx context.Context) {
	for waited := false; ctx.Err() == nil; waited = true {
		held, err := a.lock.try(a.cfg.KeyDir)
		if err != nil {
			a.cfg.Log.Warn("locking the agent's directory failed, cannot detect another agent: if one runs, both reconcile this node", "error", err)
			return
		}
		if held || a.cfg.Mode == mesh.ModeMesh && a.cfg.IsServed(a.cfg.Tunnel) {
			if waited {
				a.stats.Ready.Store(false)
			}
			return
		}
		if !waited {
			a.cfg.Log.Info("another agent runs on this node, waiting until that agent is stopped")
			a.stats.Ready.Store(true)
		}
		sleep(ctx, standbyPoll)
	}
}

// isRefused reports whether an error means that another agent of this node serves the tunnel and keeps it. If the tunnel is served
// although this agent holds the lock, no update is going on: another program has the interface's name, and the error is an ordinary one.
func (a *Agent) isRefused(err error) bool {
	return errors.Is(err, errServedElsewhere) && a.lock.file == nil
}

// isBesideAnother reports whether a reconcile failed while another agent of this node runs the tunnel. Both would publish the status
// otherwise, in turn and without end.
func (a *Agent) isBesideAnother(err error) bool {
	return err != nil && a.lock.file == nil && a.runningEngine() == nil && (a.isRefused(err) || a.cfg.IsServed(a.cfg.Tunnel))
}

// isSuperseded reports whether another agent has taken the tunnel over.
func (a *Agent) isSuperseded() bool {
	e := a.runningEngine()
	return e != nil && isClosed(e.Done()) && e.HandedOver()
}

// standBy does nothing until ctx ends or nobody serves the tunnel any more. It then returns, and the next reconcile opens the tunnel
// again.
func (a *Agent) standBy(ctx context.Context) {
	a.cfg.Log.Info("another agent has taken the tunnel over, standing by until this agent is stopped or the other agent ends")
	a.stats.standby.set(true)
	a.runningMesh().stop()
	a.lock.release()
	for ctx.Err() == nil {
		if !a.cfg.IsServed(a.cfg.Tunnel) {
			if held, err := a.lock.try(a.cfg.KeyDir); held || err != nil {
				break
			}
		}
		sleep(ctx, standbyPoll)
	}
	if ctx.Err() == nil {
		a.cfg.Log.Warn("the agent that had taken the tunnel over has ended, opening the tunnel again")
	}
	a.stats.standby.set(false)
}

// lockAfterTakeover takes the lock once the old agent stands by. While the old agent has the tunnel, it checks at longer intervals: each check
// is a reconcile, which requests the tunnel again, and of two delays for one trigger the queue keeps the earlier.
func (a *Agent) lockAfterTakeover() {
	held, err := a.lock.try(a.cfg.KeyDir)
	switch {
	case err != nil || held:
	case a.runningEngine() == nil:
		a.queue.AddAfter(hostChanged, servedElsewherePoll)
	default:
		a.queue.AddAfter(hostChanged, standbyPoll)
	}
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
