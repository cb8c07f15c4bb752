// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tests read the messages for the kernel. This is safe by the rule in raw.go: all pointers are typed, and
// point into Go slices of at least the length that is stored beside them.

func gather(h *unix.Msghdr) (payload []byte) {
	if h.Iovlen == 0 {
		return []byte{}
	}
	for _, iov := range unsafe.Slice(h.Iov, int(h.Iovlen)) {
		payload = append(payload, unsafe.Slice(iov.Base, int(iov.Len))...)
	}
	return payload
}

func controlOf(h *unix.Msghdr) []byte {
	if h.Controllen == 0 {
		return nil
	}
	return unsafe.Slice(h.Control, int(h.Controllen))
}
