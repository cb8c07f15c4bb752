// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"slices"
	"time"
)

const (
	// gatewayTimeout is how long a gateway may be silent: four keepalives.
	gatewayTimeout = 4 * coGatewayKeepalive * time.Second
	// gatewayRecovery is how long one must be heard again before traffic returns to it, so that it does not alternate.
	gatewayRecovery = 30 * time.Second
	// maxMonitorPause is the longest time between two updates in which a gateway counts as silent. In a longer one this node itself did not run.
	maxMonitorPause = gatewayTimeout / 2
)

// GatewayMonitor finds the gateways of a location from which another gateway there receives nothing. They send keepalive messages.
//
// The zero value is ready. It is not safe for concurrent use.
type GatewayMonitor struct {
	gateways map[string]gatewayActivity // by name
	updated  time.Time                  // zero: not yet
}

// gatewayActivity is the record of one gateway.
type gatewayActivity struct {
	received    uint64    // bytes
	heard       time.Time // when these last changed
	back        time.Time // since when it has been heard without a silence; zero: it is silent, or new
	unreachable bool
}

// Resume continues with gateways that were unreachable before. They stay so until they have been heard for a while.
func (m *GatewayMonitor) Resume(unreachable []string) {
	if m.gateways == nil {
		m.gateways = map[string]gatewayActivity{}
	}
	for _, name := range unreachable {
		g := m.gateways[name]
		g.unreachable = true
		m.gateways[name] = g
	}
}

// Update evaluates the bytes received from each gateway, by name, and returns the names of the unreachable ones in order. It forgets
// gateways that are absent. A new one is reachable until it has been silent.
func (m *GatewayMonitor) Update(now time.Time, received map[string]uint64) (unreachable []string) {
	var pause time.Duration
	if d := now.Sub(m.updated); !m.updated.IsZero() && d > maxMonitorPause {
		pause = d
	}
	m.updated = now
	next := make(map[string]gatewayActivity, len(received))
	for name, bytes := range received {
		g, known := m.gateways[name]
		if known {
			g.skip(pause)
		} else {
			g = gatewayActivity{received: bytes, heard: now}
		}
		g.update(now, bytes)
		next[name] = g
		if g.unreachable {
			unreachable = append(unreachable, name)
		}
	}
	m.gateways = next
	slices.Sort(unreachable)
	return unreachable
}

// skip leaves out a time in which nothing was evaluated.
func (g *gatewayActivity) skip(pause time.Duration) {
	g.heard = g.heard.Add(pause)
	if !g.back.IsZero() {
		g.back = g.back.Add(pause)
	}
}

func (g *gatewayActivity) update(now time.Time, bytes uint64) {
	if bytes != g.received { // also when the counter restarted
		g.received, g.heard = bytes, now
		if g.back.IsZero() {
			g.back = now
		}
	}
	switch {
	case now.Sub(g.heard) >= gatewayTimeout:
		g.unreachable, g.back = true, time.Time{}
	case g.unreachable && !g.back.IsZero() && now.Sub(g.back) >= gatewayRecovery:
		g.unreachable = false
	}
}
