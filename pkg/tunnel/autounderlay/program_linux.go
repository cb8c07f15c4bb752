// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// program is the classifier as an xdp.Program. The xdp.Port closes it, while other goroutines may still add peers or
// read counters. After Close they get os.ErrClosed.
type program struct {
	*programs.Classify
	tally *programCounters // gets the final counters

	mu     sync.RWMutex
	closed bool
}

var (
	_ xdp.Program = (*program)(nil)
	_ classifier  = (*program)(nil)
)

// load loads the program. It fills in the rate limits of a receiver.
func load(o *programs.ClassifyOptions, t *programCounters) (*program, error) {
	o.SourceLimit = programs.RateLimit{Interval: programs.SourceInterval, Burst: programs.SourceBurst}
	o.TotalLimit = programs.RateLimit{Interval: programs.TotalInterval, Burst: programs.TotalBurst}
	c, err := programs.LoadClassify(*o)
	if err != nil {
		return nil, fmt.Errorf("loading the XDP program: %w", err)
	}
	return &program{Classify: c, tally: t}, nil
}

// Attach implements xdp.Program.
func (p *program) Attach(device int, generic bool) error {
	if generic {
		return p.Classify.Attach(device, hook.XDPGeneric)
	}
	return p.Classify.Attach(device, hook.XDPNative)
}

// Close implements xdp.Program.
func (p *program) Close() error {
	errDetach := p.Detach() // first; otherwise packets after the last reading would not be counted
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.tally.add(p.Classify)
	return errors.Join(errDetach, p.Classify.Close())
}

// AddIndex implements classifier, as do the following methods.
func (p *program) AddIndex(index uint32) error {
	return p.withOpen(func() error { return p.Classify.AddIndex(index) })
}

func (p *program) RemoveIndex(index uint32) error {
	return p.withOpen(func() error { return p.Classify.RemoveIndex(index) })
}

func (p *program) AddSource(endpoint config.Endpoint) error {
	return p.withOpen(func() error { return p.AddPeerSource(endpoint.AddrPort) })
}

func (p *program) RemoveSource(endpoint config.Endpoint) error {
	return p.withOpen(func() error { return p.RemovePeerSource(endpoint.AddrPort) })
}

// withOpen calls f unless the program is closed. Close waits until f returns.
func (p *program) withOpen(f func() error) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return os.ErrClosed
	}
	return f()
}
