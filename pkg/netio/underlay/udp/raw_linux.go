// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's unsafe. The rule that makes it safe: every pointer handed to the kernel is the first
// element of a Go slice, or a typed pointer field of one, so the collector sees all that the kernel reads and writes;
// nothing is kept as uintptr; and sockaddr and cmsg bytes are encoded without unsafe, elsewhere.

// message is struct mmsghdr. size is set by the kernel: the bytes received or sent.
type message struct {
	hdr  unix.Msghdr
	size uint32
}

// What SO_MEMINFO tells (linux/sock_diag.h: SK_MEMINFO_VARS and SK_MEMINFO_DROPS).
const (
	memoryWords = 9
	dropsWord   = 8
)

// recvmmsg takes what is there, without blocking, so the runtime need not hear of it. Empty msgs are the caller's fault.
func recvmmsg(fd int, msgs []message) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)),
		unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// readDrops returns how many elements the kernel has discarded at a socket since there is one, modulo 1<<32 (SO_MEMINFO, kernel commit
// a2d133b1d465, Linux 4.12).
func readDrops(fd int) (uint32, unix.Errno) {
	var words [memoryWords]uint32
	size := uint32(unsafe.Sizeof(words))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&words[0])), uintptr(unsafe.Pointer(&size)), 0)
	return words[dropsWord], errno
}

// sendmmsg sends msgs in order and returns how many were sent. The error is about the first message: the kernel keeps
// to itself the reason that stopped it at a later one.
func sendmmsg(fd int, msgs []message) (int, unix.Errno) {
	if len(msgs) == 1 {
		_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0].hdr)), unix.MSG_NOSIGNAL)
		return 1, errno
	}
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)),
		unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}
