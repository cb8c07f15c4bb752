// SPDX-License-Identifier: Apache-2.0

package linger

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollHolding is ppoll(2) without a word to the runtime. This is the package's only unsafe; it is safe because both
// pointers are to Go memory that stays where it is for the call (the callers' frames hold it, and stacks do not move in
// a raw system call), and neither is kept as uintptr.
func pollHolding(fds []unix.PollFd, limit time.Duration) (int, unix.Errno) {
	ts := unix.NsecToTimespec(int64(limit))
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)),
		uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	return int(n), errno
}
