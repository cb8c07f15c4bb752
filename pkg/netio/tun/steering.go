// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// steering is the state of a device's steering program.
type steering struct {
	mu      sync.Mutex
	enabled bool
	closed  bool // the descriptors may be closed
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
	// The program belongs to the device, so any queue will do.
	err := closedIfDeleted(unix.IoctlSetPointerInt(d.queues[0].fd, unix.TUNSETSTEERINGEBPF, fd))
	switch {
	case err == nil:
		d.steering.enabled = fd >= 0
	case !errors.Is(err, os.ErrClosed):
		return fmt.Errorf("setting the steering program of %s: %w", d.name, err)
	}
	return err
}

// isEnabled reports whether a steering program is set.
func (s *steering) isEnabled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enabled
}

// close rejects further calls, and returns after the last caller has stopped using a descriptor.
func (s *steering) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}
