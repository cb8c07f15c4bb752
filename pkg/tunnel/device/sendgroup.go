// SPDX-License-Identifier: Apache-2.0

package device

import (
	"log/slog"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// sendGroups gives the peers whose data waits for a send buffer different send groups of the present port. The first stays in group 0, so
// a device whose traffic goes to one peer opens none.
type sendGroups struct {
	log *slog.Logger

	mu     sync.Mutex
	port   underlay.Port // nil while there is none
	given  int           // peers that have asked
	failed bool          // a group of this port could not be opened
}

// reset begins anew with another port, nil for none.
func (s *sendGroups) reset(port underlay.Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port, s.given, s.failed = port, 0, false
}

// next returns the group of the next peer; ok is false while there is no port. When all groups are in use, it begins again with group 1. Once
// a group could not be opened, it returns group 0.
func (s *sendGroups) next() (group int, ok bool) {
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
		s.failed = true // the next one would fail, too
		s.log.Warn("opening more send sockets failed, peers share a send buffer and may delay each other until the interface goes down and up", "error", err)
		return 0, true
	}
	return group, true
}

// SendBufferFull implements engine.SlowPath. Only the first call for each port has an effect.
func (p *Peer) SendBufferFull() {
	if !p.requests.sendGroup.Load() && p.requests.sendGroup.CompareAndSwap(false, true) {
		p.post(taskSendGroup)
	}
}

// chooseSendGroup gives the peer its send group. Messages that were sent in group 0 are in the queue of a network device by then. Unless
// that has a queue for each socket (the fq qdisc), no flow is reordered.
func (p *Peer) chooseSendGroup() {
	if !p.requests.sendGroup.Load() { // it was for the former port
		return
	}
	group, ok := p.dev.groups.next()
	if !ok {
		p.requests.sendGroup.Store(false)
		return
	}
	p.engine.SendGroup.Store(int32(group))
}

// resetSendGroup returns the peer to group 0, which is the only one of a new port.
func (p *Peer) resetSendGroup() {
	p.engine.SendGroup.Store(0)
	p.requests.sendGroup.Store(false)
}
