// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon"
)

// errAgentRuns means that an agent holds the lock of the key directory.
var errAgentRuns = errors.New("an agent runs on this host, nothing was removed: stop the agent first")

// takeover is what a cleanup has taken over from the agent before it.
type takeover struct {
	lock   instanceLock
	engine Engine // the agent's tunnel, which this process serves; nil: none
}

// takeOver makes this process the one that changes the host. Beside a running agent it fails, or with Stay takes the agent's tunnel over,
// as a new agent does in a rolling update, and waits until the agent stands by. An agent that has no tunnel, or keeps it, has to end first: this
// process then reports that it is ready, so that the update stops the agent.
func (c *CleanupConfig) takeOver(ctx context.Context) (t takeover, err error) {
	for refused := false; ; {
		held, err := t.lock.try(c.KeyDir)
		switch {
		case err != nil:
			c.Log.Warn("locking the agent's directory failed, cannot detect an agent: if one runs, it adds again what cleanup removes", "error", err)
			c.Stay.setReady(false)
			return t, nil
		case held:
			c.Stay.setReady(false)
			return t, nil
		case c.Stay == nil:
			return t, fmt.Errorf("cleaning up: %w", errAgentRuns)
		}
		if t.engine == nil && !refused {
			if t.engine, err = c.openServed(); err != nil {
				refused = true
				c.Log.Warn("taking the tunnel over from the node's agent failed, waiting until that agent is stopped: packets are dropped from then until its routes are removed", "interface", c.Tunnel, "error", err)
				c.Stay.setReady(true)
			}
		}
		if ctx.Err() != nil {
			t.end()
			return t, ctx.Err()
		}
		sleep(ctx, standbyPoll)
	}
}

// errNoTunnelServed means that the running agent has no tunnel.
var errNoTunnelServed = errors.New("the agent serves no tunnel")

// openServed takes the tunnel over from the agent that serves it.
func (c *CleanupConfig) openServed() (Engine, error) {
	if !c.IsServed(c.Tunnel) {
		return nil, errNoTunnelServed
	}
	open := c.Open
	if open == nil {
		open = takeOverEngine
	}
	return open(TunnelOptions{Name: c.Tunnel, Workers: daemon.AutoWorkers, Nice: daemon.LaneNice}, c.Log)
}

// closeEngine stops serving the tunnel. Its interface stays.
func (t *takeover) closeEngine() {
	if t.engine != nil {
		t.engine.Close()
		t.engine = nil
	}
}

// end stops serving the tunnel and releases the lock. An agent that stands by then opens the tunnel again.
func (t *takeover) end() {
	t.closeEngine()
	t.lock.release()
}
