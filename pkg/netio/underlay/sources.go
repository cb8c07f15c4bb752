// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"fmt"
	"sync/atomic"
	"syscall"
)

// Sources are the UDP ports that a Port sends from, numbered: the canonical one, which is 0, and those added since. One
// goroutine at a time may call Add; the other methods may be called by any, also meanwhile. Each source has a handle,
// whose meaning is the Port's. It is for implementations of Port.
type Sources struct {
	ports   [1 + MaxSources]uint16
	handles [1 + MaxSources]int
	count   atomic.Int32 // of those that are complete
}

// NewSources returns the sources of a port that has none yet but the canonical one.
func NewSources(canonical uint16, handle int) *Sources {
	s := new(Sources)
	s.publish(canonical, handle)
	return s
}

// Len is the number of sources with the canonical one, so that all below it are open.
func (s *Sources) Len() int { return int(s.count.Load()) }

// Port returns the UDP port of a source, 0 for one that is not open.
func (s *Sources) Port(source int) uint16 {
	if source < 0 || source >= s.Len() {
		return 0
	}
	return s.ports[source]
}

// Handle returns the handle of a source that is open.
func (s *Sources) Handle(source int) int { return s.handles[source] }

// Add returns the number of the source with that port. If there is none it calls open for its handle, and adds it. The
// errors are those of Port.OpenSource, where the other users of the port are for open to find.
func (s *Sources) Add(port uint16, open func() (handle int, err error)) (source int, err error) {
	n := s.Len()
	for i := range n {
		if s.ports[i] == port && i > 0 {
			return i, nil
		}
	}
	switch {
	case port == 0:
		return 0, fmt.Errorf("sending from UDP port 0: %w", syscall.EINVAL)
	case port == s.ports[0]:
		return 0, fmt.Errorf("sending from the canonical port %d as from another: %w", port, syscall.EADDRINUSE)
	case n > MaxSources:
		return 0, fmt.Errorf("sending from UDP port %d: %w", port, errManySources)
	}
	handle, err := open()
	if err != nil {
		return 0, err
	}
	s.publish(port, handle)
	return n, nil
}

func (s *Sources) publish(port uint16, handle int) {
	n := s.count.Load()
	s.ports[n], s.handles[n] = port, handle
	s.count.Store(n + 1)
}
