// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// steering is the state of a device's queue choice.
type steering struct {
	mu     sync.Mutex
	on     bool
	closed bool // the device's descriptors are no longer its own
}

var _ Steerer = (*device)(nil)

// SetSteering implements Steerer (TUNSETSTEERINGEBPF, Linux 4.16).
func (d *device) SetSteering(fd int) error {
	d.steering.mu.Lock()
	defer d.steering.mu.Unlock()
	if d.steering.closed {
		return os.ErrClosed
	}
	fd = max(fd, -1)
	// Any queue does: the program is the device's.
	if err := goneOr(unix.IoctlSetPointerInt(d.queues[0].fd, unix.TUNSETSTEERINGEBPF, fd)); err != nil {
		return explainSteering(d.name, err)
	}
	d.steering.on = fd >= 0
	return nil
}

func explainSteering(name string, err error) error {
	switch {
	case errors.Is(err, os.ErrClosed):
		return err
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("setting the steering program of %s: %w (not a socket filter, or a kernel before 4.16)", name, err)
	}
	return fmt.Errorf("setting the steering program of %s: %w", name, err)
}

// isOn reports whether a program chooses the queues.
func (s *steering) isOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on
}

// end lets no caller begin to use a descriptor, and returns when none is using one.
func (s *steering) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}
