// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's unsafe. It is safe because each pointer is the first element of a Go slice, whose iovecs'
// Base fields are typed pointers that the collector follows, and none is kept as uintptr. The descriptors are
// non-blocking, so the runtime need not hear of the calls.

// writev writes one element from its parts.
func writev(fd int, iovs []unix.Iovec) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iovs[0])), uintptr(len(iovs)))
	return errno
}

// read reads one element; p must not be empty.
func read(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}
