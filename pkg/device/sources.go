// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// sourcePool are those of the port that is open now. They stay open as long as it does.
type sourcePool struct {
	log *slog.Logger

	mu     sync.Mutex
	port   underlay.Port // nil while there is none
	shared []uint8       // without a plan, for all peers; nil until first needed
	err    error         // reason there are none of these
	logged bool          // it was logged that no more can be opened
}

// reset forgets all sources: port is another one, nil for none, or the range is.
func (s *sourcePool) reset(port underlay.Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port, s.shared, s.err, s.logged = port, nil, nil, false
}

// unplanned returns as many sources of a range as one peer may have, or why there are none. Ports that others hold are
// left out.
func (s *sourcePool) unplanned(ports spread.Ports) ([]uint8, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.port == nil {
		return nil, errDown
	}
	if s.shared == nil && s.err == nil {
		s.shared, s.err = s.fill(ports)
	}
	return s.shared, s.err
}

func (s *sourcePool) fill(ports spread.Ports) (list []uint8, err error) {
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
		return nil, errNoPorts
	}
	return list, nil
}

// planned returns the sources of a plan: all of them, since what is left of a plan is not even, or none. opened counts
// those that had to be opened for one peer: as many as one plan holds, since another peer may want to plan too.
func (s *sourcePool) planned(plan []uint16, ports spread.Ports, opened *int) []uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.port == nil || len(plan) > spread.MaxPorts {
		return nil
	}
	var list []uint8
	for _, port := range plan {
		isNew := !s.isOpen(port)
		if !ports.Contains(port) || isNew && *opened == spread.MaxPorts {
			return nil
		}
		source, err := s.open(port)
		if err != nil || slices.Contains(list, source) {
			return nil
		}
		if isNew {
			*opened++
		}
		list = append(list, source)
	}
	return list
}

func (s *sourcePool) isOpen(port uint16) bool {
	for source := 1; s.port.Source(source) != 0; source++ {
		if s.port.Source(source) == port {
			return true
		}
	}
	return false
}

// init opens a port that nobody else holds. That there is no room for more is logged once.
func (s *sourcePool) open(port uint16) (uint8, error) {
	source, err := s.port.OpenSource(port)
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) && !s.logged {
		s.logged = true
		s.log.Warn("no more ports to spread over can be opened", "port", port, "error", err)
	}
	return uint8(source), err
}
