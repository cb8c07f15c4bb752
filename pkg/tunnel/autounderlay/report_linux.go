// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"os"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// Report implements underlay.Switcher.
func (p *Port) Report() config.UnderlayReport {
	p.mu.Lock()
	r := config.UnderlayReport{Mode: p.mode, Path: config.UnderlayUDP, Device: p.chosenDevice, Reason: p.choice.reason}
	program, wanted, everXDP := p.program, p.choice.xdp, p.everXDP
	p.mu.Unlock()
	sum, ever := p.counters.total(program)
	s := p.Status()
	if everXDP {
		reportLanes(&r, &s)
	}
	if wanted {
		reportError(&r, &s)
	}
	if wanted || ever {
		sum.report(&r)
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
		x := config.XDPLane{
			Received: l.Received, Sent: l.Sent, Slow: l.Slow, Lost: l.Lost, Fallbacks: l.Fallbacks, Stalls: l.Stalls, Malformed: l.Malformed,
			Rejected: l.Socket.Rejected, FrameOwnershipErrors: l.Socket.FrameOwnershipErrors,
			RXHeld: l.Frames.RxUser, TXHeld: l.Frames.TxUser, TXKernel: l.Frames.TxKernel - l.Frames.TxDone,
		}
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
	mu   sync.Mutex
	sum  classifyCounters
	ever bool // a program was loaded
}

// classifyCounters is the sum of the programs.ClassifyCounters of several programs.
type classifyCounters struct{ programs.ClassifyCounters }

// add adds the last counters of a program that is about to be closed.
func (t *programCounters) add(c *programs.Classify) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ever = true
	if last, err := c.Counters(); err == nil {
		t.sum.add(&last)
	}
}

// total returns the sum, including the present program, which may be nil. ever reports whether there was a program.
func (t *programCounters) total(p *program) (sum classifyCounters, ever bool) {
	var now programs.ClassifyCounters
	errClosed := os.ErrClosed
	if p != nil {
		// Close adds p's counters to the sum, and waits for this lock. So they are counted exactly once.
		p.mu.RLock()
		defer p.mu.RUnlock()
		if !p.closed {
			now, errClosed = p.Counters()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	sum = t.sum
	if errClosed == nil {
		sum.add(&now)
	}
	return sum, t.ever || p != nil
}

func (c *classifyCounters) add(other *programs.ClassifyCounters) {
	for i, n := range other.Events {
		c.Events[i] += n
	}
	for i, n := range other.Drops {
		c.Drops[i] += n
	}
}

// report writes the counters into r.
func (c *classifyCounters) report(r *config.UnderlayReport) {
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
