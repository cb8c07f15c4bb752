// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Sources opens additional source ports on the present UDP port. They stay open until that port is closed.
type Sources struct {
	Log *slog.Logger

	mu     sync.Mutex
	port   underlay.Port // nil while there is none
	shared []uint8       // sources for all peers without a port plan; nil until first used
	err    error         // why shared is empty
	logged bool          // the failure to open more was logged
}

// Reset discards all sources after a change of the port, nil for none, or of the range.
func (s *Sources) Reset(port underlay.Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port, s.shared, s.err, s.logged = port, nil, nil, false
}

// Unplanned returns the first free ports of a range, at most spread.MaxPorts, or why there are none. It skips ports that
// other sockets use.
func (s *Sources) Unplanned(ports spread.Ports) ([]uint8, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.port == nil {
		return nil, ErrDown
	}
	if s.shared == nil && s.err == nil {
		s.shared, s.err = s.fill(ports)
	}
	return s.shared, s.err
}

func (s *Sources) fill(ports spread.Ports) (list []uint8, err error) {
	for port := int(ports.First); port <= int(ports.Last) && len(list) < spread.MaxPorts; port++ {
		source, err := s.open(uint16(port))
		switch {
		case err == nil:
			list = append(list, source)
		case !errors.Is(err, syscall.EADDRINUSE):
			return list, err
		}
	}
	if len(list) == 0 {
		return nil, ErrNoPorts
	}
	return list, nil
}

// Planned returns the sources of a port plan, or none if any port is unavailable: part of a plan
// does not spread evenly. opened counts the sources that were opened for one peer. It is at most
// the size of one plan, and half of the sources that others have left: all can still spread.
func (s *Sources) Planned(plan []uint16, ports spread.Ports, opened *int) []uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.port == nil || len(plan) == 0 || len(plan) > spread.MaxPorts {
		return nil
	}
	if s.shared == nil && s.err == nil { // first, for the peers without a plan
		s.shared, s.err = s.fill(ports)
	}
	open, added := s.openPorts(), 0
	for i, port := range plan {
		if !ports.Contains(port) || slices.Contains(plan[:i], port) {
			return nil
		}
		if !slices.Contains(open, port) {
			added++
		}
	}
	if added > 0 && *opened+added > min(spread.MaxPorts, (underlay.MaxSources-len(open)+*opened)/2) {
		return nil
	}
	defer func() { *opened += len(s.openPorts()) - len(open) }()
	var list []uint8
	for _, port := range plan {
		source, err := s.open(port)
		if err != nil {
			return nil
		}
		list = append(list, source)
	}
	return list
}

// Len returns the number of sources that are open, 0 without a port.
func (s *Sources) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.openPorts())
}

func (s *Sources) openPorts() (list []uint16) {
	for source := 1; s.port != nil && s.port.Source(source) != 0; source++ {
		list = append(list, s.port.Source(source))
	}
	return list
}

// open opens a port that no other socket uses. It logs once that no more can be opened.
func (s *Sources) open(port uint16) (uint8, error) {
	source, err := s.port.OpenSource(port)
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) && !s.logged {
		s.logged = true
		s.Log.Warn("opening a spread source port failed, spreading over fewer ports until the interface goes down and up", "source_port", port, "error", err)
	}
	return uint8(source), err
}
