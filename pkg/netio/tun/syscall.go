// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's unsafe code. Each pointer points to the first element of a Go slice. The Base fields of
// the iovecs are typed pointers that the garbage collector follows. No pointer is kept as uintptr. The descriptors are
// non-blocking, so the calls need not enter the scheduler.

// writev writes one train from its buffers.
func writev(fd int, iovs []unix.Iovec) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iovs[0])), uintptr(len(iovs)))
	return errno
}

// read reads one train; p must not be empty.
func read(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}
