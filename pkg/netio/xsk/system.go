// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"golang.org/x/sys/unix"
)

// system is every kernel call of a Socket, so that tests can let each fail or can simulate the kernel.
type system interface {
	socket() (int, error)
	close(fd int) error
	// mmap maps a ring of a socket, or anonymous memory for fd -1.
	mmap(fd int, offset int64, length, flags int) ([]byte, error)
	munmap(b []byte) error
	madvise(b []byte, advice int) error
	setInt(fd, level, option, value int) error
	setBytes(fd, level, option int, value []byte) error
	getBytes(fd, level, option int, value []byte) (int, error)
	bind(fd int, address *unix.SockaddrXDP) error
	// send and receive wake the kernel. Neither blocks or moves data.
	send(fd int) unix.Errno
	receive(fd int) unix.Errno
	probe(ifindex int) (Capabilities, error)
}

// linuxSystem is the system of a real kernel.
type linuxSystem struct{}

func (linuxSystem) socket() (int, error) {
	return unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}

func (linuxSystem) close(fd int) error { return unix.Close(fd) }

func (linuxSystem) mmap(fd int, offset int64, length, flags int) ([]byte, error) {
	return unix.Mmap(fd, offset, length, unix.PROT_READ|unix.PROT_WRITE, flags)
}

func (linuxSystem) munmap(b []byte) error { return unix.Munmap(b) }

func (linuxSystem) madvise(b []byte, advice int) error { return unix.Madvise(b, advice) }

func (linuxSystem) setInt(fd, level, option, value int) error {
	return unix.SetsockoptInt(fd, level, option, value)
}

func (linuxSystem) setBytes(fd, level, option int, value []byte) error {
	return unix.SetsockoptString(fd, level, option, string(value))
}

func (linuxSystem) getBytes(fd, level, option int, value []byte) (int, error) {
	return getsockopt(fd, level, option, value)
}

func (linuxSystem) bind(fd int, address *unix.SockaddrXDP) error { return unix.Bind(fd, address) }

func (linuxSystem) send(fd int) unix.Errno { return sendNothing(fd) }

func (linuxSystem) receive(fd int) unix.Errno { return receiveNothing(fd) }

func (linuxSystem) probe(ifindex int) (Capabilities, error) { return Probe(ifindex) }
