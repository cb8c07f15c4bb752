// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"time"

	"golang.org/x/sys/unix"
)

// system is all that a Socket asks of the kernel, so that tests can have any of it fail, and can be the kernel.
type system interface {
	socket() (int, error)
	close(fd int) error
	// mmap maps memory: a ring of a socket, or, with no descriptor (-1), anonymous memory.
	mmap(fd int, offset int64, length, flags int) ([]byte, error)
	munmap(b []byte) error
	madvise(b []byte, advice int) error
	setInt(fd, level, option, value int) error
	setBytes(fd, level, option int, value []byte) error
	getBytes(fd, level, option int, value []byte) (int, error)
	bind(fd int, address *unix.SockaddrXDP) error
	// send and receive wake the kernel; neither blocks, neither moves data.
	send(fd int) unix.Errno
	receive(fd int) unix.Errno
	probe(ifindex int) (Capabilities, error)
	// pause is a rest of d between two attempts.
	pause(d time.Duration)
}

// linux is the real one.
type linux struct{}

func (linux) socket() (int, error) {
	return unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}

func (linux) close(fd int) error { return unix.Close(fd) }

func (linux) mmap(fd int, offset int64, length, flags int) ([]byte, error) {
	return unix.Mmap(fd, offset, length, unix.PROT_READ|unix.PROT_WRITE, flags)
}

func (linux) munmap(b []byte) error { return unix.Munmap(b) }

func (linux) madvise(b []byte, advice int) error { return unix.Madvise(b, advice) }

func (linux) setInt(fd, level, option, value int) error {
	return unix.SetsockoptInt(fd, level, option, value)
}

func (linux) setBytes(fd, level, option int, value []byte) error {
	return unix.SetsockoptString(fd, level, option, string(value))
}

func (linux) getBytes(fd, level, option int, value []byte) (int, error) {
	return getsockopt(fd, level, option, value)
}

func (linux) bind(fd int, address *unix.SockaddrXDP) error { return unix.Bind(fd, address) }

func (linux) send(fd int) unix.Errno { return sendNothing(fd) }

func (linux) receive(fd int) unix.Errno { return receiveNothing(fd) }

func (linux) probe(ifindex int) (Capabilities, error) { return Probe(ifindex) }

func (linux) pause(d time.Duration) { time.Sleep(d) }
