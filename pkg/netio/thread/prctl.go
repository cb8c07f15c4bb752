// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setName is prctl(PR_SET_NAME), which names the calling thread. This is the package's only unsafe code. The kernel
// reads up to the terminating zero during the call and keeps no pointer.
func setName(name string) error {
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
