// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// secondaryReceiveBuffer is the receive buffer of a source in bytes. Little traffic arrives there, and the limit keeps
// attackers from filling much memory.
const secondaryReceiveBuffer = 128 << 10

// sourceConfig returns the configuration of a source's socket. It differs from a lane's
// configuration only in the options for receiving.
func (c *Config) sourceConfig(family int) Config {
	s := *c
	s.NoIPv6 = family == unix.AF_INET
	s.NoGRO = true
	s.Sockets = nil
	s.ReceiveBuffer = secondaryReceiveBuffer
	return s
}

// OpenSource implements underlay.Port. The socket belongs to the calling thread's network
// namespace, like the sockets of Open. All lanes share it. This costs no lock: the kernel's UDP
// send path takes none.
func (p *Port) OpenSource(port uint16) (source int, err error) {
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.closed.Load() || p.kept {
		return 0, net.ErrClosed
	}
	before := p.sources.Len()
	source, err = p.sources.Add(port, func() (fd int, err error) {
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
	if err == nil && source >= before {
		p.noteOpened(1 + p.addToGroups(source))
	}
	return source, err
}

// descriptorReserve is the number of descriptors that sources leave to the rest of the process, which must stay
// controllable.
const descriptorReserve = 64

// checkDescriptorReserve returns EMFILE if fd is among the last descriptors. The kernel assigns the lowest free one.
func checkDescriptorReserve(fd int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && uint64(fd)+descriptorReserve >= limit.Cur {
		return fmt.Errorf("opening a source port: the last %d file descriptors are reserved (raise ulimit -n): %w", descriptorReserve, unix.EMFILE)
	}
	return nil
}

// Source implements underlay.Port.
func (p *Port) Source(source int) uint16 { return p.sources.Port(source) }
