// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// secondaryReceiveBuffer is the receive buffer of a source in bytes: little comes, and nobody is to fill much memory with it.
const secondaryReceiveBuffer = 128 << 10

// sourceConfig returns the configuration of a source's socket: that of the lanes, but for what concerns receiving.
func (c *Config) sourceConfig(family int) Config {
	s := *c
	s.NoIPv6 = family == unix.AF_INET
	s.NoGRO = true
	s.Sockets = nil
	s.ReceiveBuffer = secondaryReceiveBuffer
	return s
}

// OpenSource implements underlay.Port. The socket belongs to the calling thread's network namespace, as those of Open do.
// All lanes share it, which costs no lock: the kernel's UDP sends take none.
func (p *Port) OpenSource(port uint16) (source int, err error) {
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.closed.Load() || p.kept {
		return 0, net.ErrClosed
	}
	return p.sources.Add(port, func() (fd int, err error) {
		s, err := openBound(&p.config, port, (*socket).bind)
		if err != nil {
			return -1, err
		}
		err = checkDescriptorReserve(s.fd)
		if err == nil {
			err = p.secondary.watch(s.fd)
		}
		if err != nil {
			_ = unix.Close(s.fd)
			return -1, err
		}
		return s.fd, nil
	})
}

// descriptorReserve is how many descriptors sources leave to the rest of the process, which must stay in control.
const descriptorReserve = 64

// checkDescriptorReserve returns EMFILE for one of the last descriptors. The kernel gives out the lowest that is free.
func checkDescriptorReserve(fd int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && uint64(fd)+descriptorReserve >= limit.Cur {
		return fmt.Errorf("opening a source with the last %d descriptors (ulimit -n): %w", descriptorReserve, unix.EMFILE)
	}
	return nil
}

// Source implements underlay.Port.
func (p *Port) Source(source int) uint16 { return p.sources.Port(source) }
