// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

var _ underlay.Selector = (*Port)(nil)

// SetSelection implements underlay.Selector by a classic BPF program at the group of the lanes' sockets
// (SO_ATTACH_REUSEPORT_CBPF, kernel commit 538950a1b752), which takes no privilege. Lane i is socket i of the group: they
// are numbered as they were bound, and none is closed before all are. The kernel takes the new program in place of the old
// one between two datagrams; where it then frees the old one too early (selectionReplaceable), the first one stands.
func (p *Port) SetSelection(s *underlay.Selection) (plans int, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.closed.Load() || p.kept {
		return 0, net.ErrClosed
	}
	switch {
	case len(p.lanes) == 1: // no group, and nothing to choose
		p.selects.Store(s.Selects())
		return len(s.Plans), nil
	case p.selects.Load() && !p.replaces:
		return p.keep(s)
	case !s.Selects():
		return 0, p.unselect()
	}
	plans, err = p.attach(s)
	if err != nil {
		return 0, errors.Join(err, p.unselect())
	}
	p.selects.Store(true)
	p.standing, p.fit = s.Clone(), plans
	return plans, nil
}

// keep leaves the selection that stands as it is. Who has resumed puts the same plans together in an order of his own.
func (p *Port) keep(s *underlay.Selection) (plans int, err error) {
	now, standing := byAddress(s), byAddress(&p.standing)
	if now.Equal(&standing) {
		return p.fit, nil
	}
	return 0, fmt.Errorf("choosing lanes anew (Linux %s may not survive it, CVE-2026-52910): %w",
		kernelRelease(), underlay.ErrSelectionStands)
}

// byAddress returns a selection that selects the same, whatever the order of the plans: of those for one address the first stays so.
func byAddress(s *underlay.Selection) underlay.Selection {
	c := s.Clone()
	slices.SortStableFunc(c.Plans, func(a, b underlay.Plan) int { return a.From.Compare(b.From) })
	return c
}

// attach leaves plans out, from the last, until the kernel takes the program. What it has not taken once it is not asked again.
func (p *Port) attach(s *underlay.Selection) (plans int, err error) {
	for {
		code, plans := compileSelection(s, len(p.lanes), p.room)
		err := p.load(code)
		if err == nil {
			return plans, nil
		}
		if plans == 0 || !errors.Is(err, unix.ENOMEM) {
			return 0, err
		}
		p.room = roomOfAll(s.Plans[:plans]) - 1
	}
}

// load gives the group a program.
func (p *Port) load(code []unix.SockFilter) error {
	err := unix.SetsockoptSockFprog(p.lanes[0].fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
	if err != nil {
		return fmt.Errorf("choosing lanes by source port (SO_ATTACH_REUSEPORT_CBPF): %w", err)
	}
	return nil
}

// unselect leaves the choice to the kernel's hash.
func (p *Port) unselect() error {
	if !p.selects.Swap(false) {
		return nil
	}
	err := unix.SetsockoptInt(p.lanes[0].fd, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
	if err != nil {
		return fmt.Errorf("leaving the choice of lanes to the kernel (SO_DETACH_REUSEPORT_BPF): %w", err)
	}
	return nil
}
