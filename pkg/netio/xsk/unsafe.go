// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's unsafe code. Every view of a mapping is checked to lie within the mapping and to be
// aligned. A mapping is not Go memory, so the garbage collector neither moves nor frees it; the package drops all views
// before it unmaps. No pointer for a system call is kept as uintptr beyond the call, except the address of the UMEM,
// which is a mapping.

var errBadOffsets = errors.New("the kernel's AF_XDP ring offsets (XDP_MMAP_OFFSETS) exceed the mapped ring")

// ringView returns the indices and the n items of a ring in mapped memory.
func ringView[T Desc | uint64](mem []byte, at *unix.XDPRingOffset, n int) (indices, []T, error) {
	var item T
	producer, consumer, flags := uint32View(mem, at.Producer), uint32View(mem, at.Consumer), uint32View(mem, at.Flags)
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

// uint32View returns nil for an offset that is unaligned or outside of mem. A mapping begins at a page.
func uint32View(mem []byte, offset uint64) *atomic.Uint32 {
	if offset%4 != 0 || uint64(len(mem)) < 4 || offset > uint64(len(mem))-4 {
		return nil
	}
	return (*atomic.Uint32)(unsafe.Pointer(&mem[offset]))
}

// ringMappingLen returns the length of a ring's mapping in bytes.
func ringMappingLen[T Desc | uint64](at *unix.XDPRingOffset, n int) int {
	var item T
	return int(at.Desc) + n*int(unsafe.Sizeof(item))
}

// addressOf returns the address of a mapping.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// bytesOf returns a struct of linux/if_xdp.h as bytes. A kernel whose struct is shorter ignores or omits the rest.
func bytesOf[T unix.XDPMmapOffsets | unix.XDPStatistics | unix.XDPUmemReg](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// getsockopt returns the number of bytes written to value.
func getsockopt(fd, level, option int, value []byte) (int, error) {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(length), nil
}

// sendNothing and receiveNothing do not block, so they need not enter the scheduler.
func sendNothing(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

func receiveNothing(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}
