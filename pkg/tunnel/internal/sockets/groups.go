// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"log/slog"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// Groups gives the peers whose data waits for a send buffer different send groups of the present port. The first stays in group 0, so
// a device whose traffic goes to one peer opens none.
type Groups struct {
	Log *slog.Logger

	mu     sync.Mutex
	port   underlay.Port // nil while there is none
	given  int           // peers that have asked
	failed bool          // a group of this port could not be opened
}

// Reset begins anew with another port, nil for none.
func (s *Groups) Reset(port underlay.Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port, s.given, s.failed = port, 0, false
}

// Next returns the group of the next peer; ok is false while there is no port. When all groups are in use, it begins again with group 1. Once
// a group could not be opened, it returns group 0.
func (s *Groups) Next() (group int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.port == nil {
		return 0, false
	}
	if s.given > 0 {
		group = 1 + (s.given-1)%(underlay.MaxGroups-1)
	}
	s.given++
	if group == 0 || s.failed {
		return 0, true
	}
	if err := s.port.OpenGroup(group); err != nil {
		s.failed = true // the next one would also fail
		s.Log.Warn("opening more send sockets failed, peers share a send buffer and may delay each other until the interface goes down and up", "error", err)
		return 0, true
	}
	return group, true
}
