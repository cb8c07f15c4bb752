// SPDX-License-Identifier: Apache-2.0

package busypoll

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollRaw is ppoll(2) without entering the scheduler. This is the package's only unsafe code. Both
// pointers are to Go memory that does not move during the call. The callers' frames hold it, and
// stacks do not move in a raw system call. Neither pointer is kept as uintptr.
func pollRaw(fds []unix.PollFd, limit time.Duration) (int, unix.Errno) {
	ts := unix.NsecToTimespec(int64(limit))
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)),
		uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	return int(n), errno
}
