// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"fmt"
	"sync/atomic"
	"syscall"
)

// Sources numbers the UDP ports that a Port sends from: the listen port is 0, and further ones follow in the order
// of Add. One goroutine at a time may call Add. Any goroutine may call the other methods, also during Add. Each source
// has a handle, whose meaning the Port defines. This type is for implementations of Port.
type Sources struct {
	ports   [1 + MaxSources]uint16
	handles [1 + MaxSources]int
	count   atomic.Int32 // completed entries
}

// NewSources returns the sources of a port that has only the listen port.
func NewSources(listenPort uint16, handle int) *Sources {
	s := new(Sources)
	s.publish(listenPort, handle)
	return s
}

// Len returns the number of sources, including the listen port. All lower numbers are open.
func (s *Sources) Len() int { return int(s.count.Load()) }

// Port returns the UDP port of a source, or 0 if the source is not open.
func (s *Sources) Port(source int) uint16 {
	if source < 0 || source >= s.Len() {
		return 0
	}
	return s.ports[source]
}

// Handle returns the handle of an open source.
func (s *Sources) Handle(source int) int { return s.handles[source] }

// Add returns the number of the source with that port. If there is none, it calls open for a
// handle and adds the source. Its errors are as in Port.OpenSource; open reports whether another
// program uses the port.
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
		return 0, fmt.Errorf("opening the source port %d: it is the listen port: %w", port, syscall.EADDRINUSE)
	case n > MaxSources:
		return 0, fmt.Errorf("sending from UDP port %d: %w", port, errTooManySources)
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
