// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// Report implements underlay.Switcher.
func (p *Port) Report() config.UnderlayReport {
	p.mu.Lock()
	now, mode, program, everXDP := p.choice, p.settings.mode, p.program, p.everXDP
	p.mu.Unlock()
	r := config.UnderlayReport{Mode: mode, Path: config.UnderlayUDP, Device: now.device, Reason: now.reason}
	if s := p.Status(); everXDP {
		reportLanes(&r, &s)
		if now.xdp {
			reportError(&r, &s)
		}
		reportCounters(&r, p.counters.total(program))
	}
	return r
}

// reportLanes adds the lanes' state and counters.
func reportLanes(r *config.UnderlayReport, s *xdp.Status) {
	if r.Lanes = s.Ready(); r.Lanes > 0 {
		r.Path = config.UnderlayXDP
	}
	for i := range s.Lanes {
		l := &s.Lanes[i]
		x := l.XDPLane
		if l.Err != nil {
			x.Error = l.Err.Error()
		} else {
			r.How = l.Features.Mode.String()
		}
		r.XDP = append(r.XDP, x)
	}
}

// reportError replaces the reason by the error that keeps the chosen path from working.
func reportError(r *config.UnderlayReport, s *xdp.Status) {
	switch {
	case s.Err != nil:
		r.Reason = s.Err.Error()
	case r.Lanes == 0 && len(s.Lanes) > 0 && s.Lanes[0].Err != nil:
		r.Reason = s.Lanes[0].Err.Error()
	}
}

// programCounters sums the counters of all programs of a port, former ones included, so that no counter decreases.
type programCounters struct {
	mu  sync.Mutex
	sum programs.ClassifyCounters // of former programs
}

// add adds the last counters of a program that is about to be closed.
func (t *programCounters) add(c *programs.Classify) {
	t.mu.Lock()
	defer t.mu.Unlock()
	addCounters(&t.sum, c)
}

// total returns the sum, including the present program, which may be nil.
func (t *programCounters) total(p *program) programs.ClassifyCounters {
	if p != nil {
		// Close adds p's counters to the sum, and waits for this lock. So they are counted exactly once.
		p.mu.RLock()
		defer p.mu.RUnlock()
	}
	t.mu.Lock()
	sum := t.sum
	t.mu.Unlock()
	if p != nil && !p.closed {
		addCounters(&sum, p.Classify)
	}
	return sum
}

func addCounters(sum *programs.ClassifyCounters, c *programs.Classify) {
	more, _ := c.Counters() // zero after an error
	for i, n := range more.Events {
		sum.Events[i] += n
	}
	for i, n := range more.Drops {
		sum.Drops[i] += n
	}
}

func reportCounters(r *config.UnderlayReport, c programs.ClassifyCounters) {
	r.Events, r.Drops = map[string]uint64{}, map[string]uint64{}
	for i, n := range c.Events {
		r.Events[programs.ClassifyEvent(i).String()] = n
	}
	for i, n := range c.Drops {
		if n > 0 {
			r.Drops[drop.Reason(i).String()] = n
		}
	}
}
