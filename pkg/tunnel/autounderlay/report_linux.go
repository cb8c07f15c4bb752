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
	r := config.UnderlayReport{Mode: p.mode, Path: config.UnderlayUDP, Device: p.where, Reason: p.now.reason}
	program, wanted, express := p.program, p.now.xdp, p.express
	want, over := p.want, p.share
	p.mu.Unlock()
	sum, ever := p.tally.with(program)
	s := p.Status()
	if want.On() {
		r.ReceiveCPUs = over.report(want, r.Device, s.Attached, s.Err)
	}
	if express {
		lanes(&r, &s)
	}
	if wanted {
		explain(&r, &s)
	}
	if wanted || ever {
		sum.report(&r)
	}
	return r
}

// lanes reports how the lanes are.
func lanes(r *config.UnderlayReport, s *xdp.Status) {
	if r.Lanes = s.Ready(); r.Lanes > 0 {
		r.Path = config.UnderlayXDP
	}
	for i := range s.Lanes {
		l := &s.Lanes[i]
		x := config.XDPLane{
			Received: l.Received, Sent: l.Sent, Slow: l.Slow, Lost: l.Lost, Fallbacks: l.Fallbacks, Malformed: l.Malformed,
			Rejected: l.Socket.Rejected, Misowned: l.Socket.Misowned,
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

// explain says what is in the way of the way that was chosen.
func explain(r *config.UnderlayReport, s *xdp.Status) {
	switch {
	case s.Err != nil:
		r.Reason = s.Err.Error()
	case r.Lanes == 0 && len(s.Lanes) > 0 && s.Lanes[0].Err != nil:
		r.Reason = s.Lanes[0].Err.Error()
	}
}

// tally is what all programs of a port have counted, those before the present one too: a counter never goes back.
type tally struct {
	mu   sync.Mutex
	sum  counts
	ever bool // there was one
}

// counts are programs.ClassifyCounters of several programs.
type counts struct{ programs.ClassifyCounters }

// add adds the last counters of a program that is closed next.
func (t *tally) add(c *programs.Classify) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ever = true
	if last, err := c.Counters(); err == nil {
		t.sum.add(&last)
	}
}

// with returns the sum with that of the present program, which may be nil, and whether there ever was one.
func (t *tally) with(p *program) (sum counts, ever bool) {
	var now programs.ClassifyCounters
	errClosed := os.ErrClosed
	if p != nil {
		// Closing p adds its counters to the sum, and waits until they are not in use: they are in here once.
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

func (c *counts) add(other *programs.ClassifyCounters) {
	for i, n := range other.Events {
		c.Events[i] += n
	}
	for i, n := range other.Drops {
		c.Drops[i] += n
	}
}

// report puts the counts into r.
func (c *counts) report(r *config.UnderlayReport) {
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
