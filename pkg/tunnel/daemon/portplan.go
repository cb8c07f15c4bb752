// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// planner plans the source ports of peers from the RSS settings of the network device through which they are reached. It logs each reason
// for a missing plan once.
type planner struct {
	log    *slog.Logger
	mu     sync.Mutex
	logged map[string]bool
}

// plan implements device.Planner.
func (p *planner) plan(local netip.AddrPort, peer *underlay.Endpoint, mark uint32, candidates spread.Ports) []uint16 {
	rss, err := hostnet.RSSFor(local.Addr(), peer.Dst.Addr(), peer.Scope, mark)
	if err != nil {
		p.logOnce(slog.LevelDebug, err)
		return nil
	}
	ports, err := spread.Plan(&rss.RSS, peer.Dst.Addr(), local, candidates, 0)
	switch {
	case errors.Is(err, spread.ErrNotByPort):
		p.logOnce(slog.LevelWarn, err)
	case err != nil:
		p.logOnce(slog.LevelInfo, err)
	}
	return ports
}

// maxReasons bounds the reasons that are logged.
const maxReasons = 64

// logOnce logs an error unless its reason is known. The reason is the wrapped error: the outer one names addresses, which peers choose.
func (p *planner) logOnce(level slog.Level, err error) {
	reason := err.Error()
	if inner := errors.Unwrap(err); inner != nil {
		reason = inner.Error()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.logged[reason] && len(p.logged) < maxReasons {
		p.logged[reason] = true
		p.log.Log(context.Background(), level, "planning source ports failed, spreading without a plan", "error", err)
	}
}
