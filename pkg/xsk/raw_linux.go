// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's unsafe. It is safe because what it makes of a mapping lies within the mapping and is
// aligned, both checked; because a mapping is not Go memory, so the collector neither moves nor frees it, and the
// package lets go of all views before it is unmapped; and because no pointer for a system call is kept as uintptr
// beyond the call, but for the UMEM's address, which is that of a mapping.

var errBadOffsets = errors.New("the kernel describes a ring that does not fit its memory")

// ringView lays a ring of n items over mapped memory.
func ringView[T Desc | uint64](mem []byte, at *unix.XDPRingOffset, n int) (indices, []T, error) {
	var item T
	producer, consumer, flags := wordView(mem, at.Producer), wordView(mem, at.Consumer), wordView(mem, at.Flags)
	if producer == nil || consumer == nil || flags == nil {
		return indices{}, nil, errBadOffsets
	}
	if at.Desc%uint64(unsafe.Alignof(item)) != 0 || at.Desc > uint64(len(mem)) ||
		(uint64(len(mem))-at.Desc)/uint64(unsafe.Sizeof(item)) < uint64(n) {
		return indices{}, nil, errBadOffsets
	}
	items := unsafe.Slice((*T)(unsafe.Pointer(&mem[at.Desc])), n)
	return indices{producer: producer, consumer: consumer, flags: flags}, items, nil
}

// wordView returns nil for an offset that is no word of mem. A mapping begins at a page.
func wordView(mem []byte, offset uint64) *atomic.Uint32 {
	if offset%4 != 0 || uint64(len(mem)) < 4 || offset > uint64(len(mem))-4 {
		return nil
	}
	return (*atomic.Uint32)(unsafe.Pointer(&mem[offset]))
}

// ringLength is the length of a ring's mapping.
func ringLength[T Desc | uint64](at *unix.XDPRingOffset, n int) int {
	var item T
	return int(at.Desc) + n*int(unsafe.Sizeof(item))
}

// addressOf is where a mapping lies.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// mmapOffsets are the kernel's struct xdp_mmap_offsets as bytes.
func mmapOffsets(o *unix.XDPMmapOffsets) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(o)), unsafe.Sizeof(*o))
}

// statistics are the kernel's struct xdp_statistics as bytes.
func statistics(s *unix.XDPStatistics) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s))
}

// umemReg is the kernel's struct xdp_umem_reg as bytes. All 32 are given: a kernel that knows fewer ignores the rest.
func umemReg(r *unix.XDPUmemReg) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(r)), unsafe.Sizeof(*r))
}

// getsockopt returns how many bytes of value were filled.
func getsockopt(fd, level, option int, value []byte) (int, error) {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(length), nil
}

// sendNothing and receiveNothing do not block, so the runtime need not hear of them.
func sendNothing(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

func receiveNothing(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}
