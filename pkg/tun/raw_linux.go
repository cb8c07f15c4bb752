// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// writev writes one element from its parts. This is the package's only unsafe; it is safe because the pointer is the
// first element of a Go slice of iovecs, whose Base fields are typed pointers that the collector follows, and neither
// is kept as uintptr.
func writev(fd int, iovs []unix.Iovec) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iovs[0])), uintptr(len(iovs)))
	return errno
}
