// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool performs one ethtool command on one device. The request begins with the command's number and is long enough
// for the kernel's reply, which overwrites it. Errors are the kernel's errno.
type ethtool func(request []byte) error

// openEthtool returns the ethtool function of a device, by name, in the network namespace of the calling thread.
// closeIt releases it.
func openEthtool(device string) (call ethtool, closeIt func(), err error) {
	if len(device) >= unix.IFNAMSIZ {
		return nil, nil, unix.ENODEV
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return func(request []byte) error { return ethtoolIoctl(fd, device, request) }, func() { unix.Close(fd) }, nil
}

// ifreqData is struct ifreq with a pointer in its union, which is 24 bytes long on 64-bit machines.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(unsafe.Pointer(nil))]byte
}

// ethtoolIoctl may use unsafe because the kernel keeps neither pointer, and both are pinned until it returns. The
// pinner pins the request. The ifreq is converted in the call's own arguments (unsafe.Pointer, rule 4). The kernel
// writes no more than the command's structure and the arrays whose lengths the request states, and requests are that
// long. Some kernels write all names and counters they have; those requests have spare room.
func ethtoolIoctl(fd int, device string, request []byte) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(unsafe.SliceData(request))
	ifreq := ifreqData{data: unsafe.Pointer(unsafe.SliceData(request))}
	copy(ifreq.name[:len(ifreq.name)-1], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifreq)))
	if errno != 0 {
		return errno
	}
	return nil
}
