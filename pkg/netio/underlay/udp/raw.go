// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's unsafe code. One rule makes it safe: every pointer passed to the
// kernel is a Go slice's first element, or a typed pointer field of one. So the collector sees
// everything that the kernel reads and writes. Nothing is kept as uintptr. Other files encode
// sockaddr and cmsg bytes without unsafe.

// message is struct mmsghdr. The kernel sets size: the bytes received or sent.
type message struct {
	hdr  unix.Msghdr
	size uint32
}

// Layout of SO_MEMINFO (linux/sock_diag.h: SK_MEMINFO_VARS and SK_MEMINFO_DROPS).
const (
	memInfoWords = 9
	memInfoDrops = 8
)

// recvmmsg receives without blocking, so the runtime need not know of the call. msgs must not be empty.
func recvmmsg(fd int, msgs []message) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)),
		unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// readDrops returns the number of elements that the kernel has discarded at a socket since its
// creation, modulo 1<<32. It reads SO_MEMINFO (kernel commit a2d133b1d465, Linux 4.12).
func readDrops(fd int) (uint32, unix.Errno) {
	var words [memInfoWords]uint32
	size := uint32(unsafe.Sizeof(words))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&words[0])), uintptr(unsafe.Pointer(&size)), 0)
	return words[memInfoDrops], errno
}

// disconnect makes a connected UDP socket forget its addresses (connect(2) to AF_UNSPEC).
func disconnect(fd int) unix.Errno {
	unspec := [1]unix.RawSockaddr{{Family: unix.AF_UNSPEC}}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec[0])), unsafe.Sizeof(unspec[0]))
	return errno
}

// sendmmsg sends msgs in order and returns how many were sent. It does not wait: EAGAIN means that the send buffer is full.
// An error concerns the first message: if a later one fails, the kernel returns the count and drops the error.
func sendmmsg(fd int, msgs []message) (int, unix.Errno) {
	const flags = unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT
	if len(msgs) == 1 {
		_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0].hdr)), flags)
		return 1, errno
	}
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), flags, 0, 0)
	return int(n), errno
}
