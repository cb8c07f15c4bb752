// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// planner plans the source ports of peers by the RSS of the device they are reached by. What stands in the way is
// logged, once.
type planner struct {
	log    *slog.Logger
	mu     sync.Mutex
	logged map[string]bool
}

// plan implements device.Planner.
func (p *planner) plan(own netip.AddrPort, peer netip.Addr, mark uint32, candidates spread.Ports) []uint16 {
	rss, err := hostnet.RSSFor(own.Addr(), peer, mark)
	if err != nil {
		p.say(slog.LevelDebug, err)
		return nil
	}
	ports, err := spread.Plan(&rss.RSS, peer, own, candidates, 0)
	switch {
	case errors.Is(err, spread.ErrNotByPort):
		p.say(slog.LevelWarn, err)
	case err != nil:
		p.say(slog.LevelInfo, err)
	}
	return ports
}

func (p *planner) say(level slog.Level, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.logged[err.Error()] {
		p.logged[err.Error()] = true
		p.log.Log(context.Background(), level, "peers' ports are not planned", "error", err)
	}
}
