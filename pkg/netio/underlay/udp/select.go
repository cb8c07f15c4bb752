// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

var _ underlay.Selector = (*Port)(nil)

// SetSelection implements underlay.Selector by a classic BPF program at the reuseport group of the lanes' sockets
// (SO_ATTACH_REUSEPORT_CBPF, kernel commit 538950a1b752). It needs no privilege. Lane i is socket i of the group: the
// kernel numbers sockets in the order of their bind calls, and all are closed together. The kernel replaces a program
// between two datagrams. Kernels that free the old one too early (selectionReplaceable) keep the first one.
func (p *Port) SetSelection(s *underlay.Selection) (plans int, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.closed.Load() || p.kept {
		return 0, net.ErrClosed
	}
	switch {
	case len(p.lanes) == 1: // no group, so there is no choice
		p.selects.Store(s.Selects())
		return len(s.Plans), nil
	case p.selects.Load() && !p.selectionReplaceable:
		return p.keepSelection(s)
	case !s.Selects():
		return 0, p.unselect()
	}
	plans, err = p.attachSelection(s)
	if err != nil {
		return 0, errors.Join(err, p.unselect())
	}
	p.selects.Store(true)
	p.selection, p.selectionPlans = s.Clone(), plans
	return plans, nil
}

// keepSelection leaves the active selection unchanged. After a resume, the caller may pass the same plans in another
// order.
func (p *Port) keepSelection(s *underlay.Selection) (plans int, err error) {
	now, standing := byAddress(s), byAddress(&p.selection)
	if now.Equal(&standing) {
		return p.selectionPlans, nil
	}
	release, _ := kernel.Uname()
	return 0, fmt.Errorf("replacing the lane selection (unsafe on Linux %s, CVE-2026-52910): %w", release, underlay.ErrSelectionFixed)
}

// byAddress returns an equivalent selection with the plans sorted by address. Among plans for one address the first
// stays first.
func byAddress(s *underlay.Selection) underlay.Selection {
	c := s.Clone()
	slices.SortStableFunc(c.Plans, func(a, b underlay.Plan) int { return a.From.Compare(b.From) })
	return c
}

// attachSelection drops plans from the end until the kernel accepts the program. It remembers the limit for later
// calls.
func (p *Port) attachSelection(s *underlay.Selection) (plans int, err error) {
	for {
		code, plans := compileSelection(s, len(p.lanes), p.maxInstructions)
		err := p.attachProgram(code)
		if err == nil {
			return plans, nil
		}
		if plans == 0 || !errors.Is(err, unix.ENOMEM) {
			return 0, err
		}
		p.maxInstructions = maxProgramSize(s.Plans[:plans]) - 1
	}
}

// attachProgram attaches a program to the group.
func (p *Port) attachProgram(code []unix.SockFilter) error {
	err := unix.SetsockoptSockFprog(p.lanes[0].fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
	if err != nil {
		return fmt.Errorf("attaching the lane selection by source port (SO_ATTACH_REUSEPORT_CBPF): %w", err)
	}
	return nil
}

// unselect removes the program, so that the kernel's hash chooses.
func (p *Port) unselect() error {
	if !p.selects.Swap(false) {
		return nil
	}
	err := unix.SetsockoptInt(p.lanes[0].fd, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
	if err != nil {
		return fmt.Errorf("detaching the lane selection (SO_DETACH_REUSEPORT_BPF): %w", err)
	}
	return nil
}
