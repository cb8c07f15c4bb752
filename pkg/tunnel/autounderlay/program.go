// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// maxCheckedIndices is the number of receiver indices up to which a program checks them. Its map has room for more,
// because another program takes over later.
const maxCheckedIndices = programs.ClassifyIndices * 3 / 4

// program is the classifier as an xdp.Program and an underlay.Guard. The xdp.Port closes it, while other goroutines may still add peers or
// read counters. After Close these calls have no effect.
type program struct {
	*programs.Classify
	counters *programCounters // gets the final counters
	indices  atomic.Int64
	full     func() // called when there are more than maxCheckedIndices

	mu     sync.RWMutex
	closed bool
}

var (
	_ xdp.Program    = (*program)(nil)
	_ underlay.Guard = (*program)(nil)
)

// load loads the program. It fills in the rate limits of a receiver.
func load(o *programs.ClassifyOptions, full func(), t *programCounters) (*program, error) {
	o.SourceLimit = programs.RateLimit{Interval: programs.SourceInterval, Burst: programs.SourceBurst}
	o.TotalLimit = programs.RateLimit{Interval: programs.TotalInterval, Burst: programs.TotalBurst}
	c, err := programs.LoadClassify(*o)
	if err != nil {
		return nil, fmt.Errorf("loading the XDP program: %w", err)
	}
	return &program{Classify: c, counters: t, full: full}, nil
}

// Close implements xdp.Program.
func (p *program) Close() error {
	errDetach := p.Detach() // first; otherwise packets after the last reading would not be counted
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.counters.add(p.Classify)
	return errors.Join(errDetach, p.Classify.Close())
}

// AddIndex implements underlay.Guard, as do the following methods.
func (p *program) AddIndex(index uint32) {
	p.withOpen(func() { _ = p.Classify.AddIndex(index) }) // the map has room for maxCheckedIndices
	if p.indices.Add(1) > maxCheckedIndices {
		p.full()
	}
}

// RemoveIndex may fail: a remaining index only admits messages that no session can open.
func (p *program) RemoveIndex(index uint32) {
	p.indices.Add(-1)
	p.withOpen(func() { _ = p.Classify.RemoveIndex(index) })
}

// AddSource may fail: if the map is full, the peer counts as unknown.
func (p *program) AddSource(endpoint config.Endpoint) {
	p.withOpen(func() { _ = p.AddPeerSource(endpoint.AddrPort) })
}

func (p *program) RemoveSource(endpoint config.Endpoint) {
	p.withOpen(func() { _ = p.RemovePeerSource(endpoint.AddrPort) })
}

// withOpen calls f unless the program is closed. Close waits until f returns.
func (p *program) withOpen(f func()) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.closed {
		f()
	}
}
