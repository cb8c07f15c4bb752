// SPDX-License-Identifier: Apache-2.0

// Package tun is the inner edge: a multi-queue TUN device with checksum and segmentation offloads. It holds the
// contract (Device, Queue), the Linux implementation, the in-memory fake and the contract test that both pass.
package tun

import (
	"errors"

	"github.com/ropewalk/ropewalk/pkg/offload"
)

// MaxElement is the largest element a queue returns or takes: the virtio-net header and a 64 KiB packet.
const MaxElement = offload.VnetHdrLen + 65535

// MaxParts is the largest number of parts that Write takes: a header and a payload for each of 64 packets, and a few.
const MaxParts = 130

// bigElement is the size beyond which an element ends a Read.
const bigElement = 4 << 10

// ErrTooManyParts says that Write was given more than MaxParts parts.
var ErrTooManyParts = errors.New("too many parts in one element")

// Queue is one queue of a Device. One goroutine may call Read while another calls Write; neither method may be called
// by two goroutines at once. Neither allocates.
type Queue interface {
	// Read blocks until the queue has something, then reads elements (a virtio-net header of offload.VnetHdrLen bytes,
	// then one packet or one train) into bufs[i], which must hold MaxElement bytes, and stores their lengths in
	// sizes[i]. It goes on without blocking until the queue is empty, bufs are used up, or the element just read was
	// larger than 4 KiB: a train is worth an immediate send. It returns os.ErrClosed once the device is closed or gone.
	Read(bufs [][]byte, sizes []int) (int, error)
	// TryRead is Read for the same goroutine, without waiting: it returns 0 when there is nothing. Errors are left to the next
	// Read.
	TryRead(bufs [][]byte, sizes []int) int
	// Write writes one element given in at most MaxParts parts; parts[0] starts with the virtio-net header. It returns
	// os.ErrClosed once the device is closed or gone. Any other error is about this element, or passes: EINVAL for one
	// that the kernel finds malformed, EIO while the interface is down.
	Write(parts [][]byte) error
	// Inject is Write for any number of goroutines, beside the one that writes: it takes a lock.
	Inject(parts [][]byte) error
}

// Device is one TUN interface with its queues.
type Device interface {
	// Name is the interface's name, as the kernel has it.
	Name() string
	// Queues are all queues of the device; their number is fixed.
	Queues() []Queue
	// Features says which offloads are on, and whether the device steers.
	Features() Features
	// Events delivers state changes, beginning with the state at open. A reader that is slow sees only the last one. It
	// is closed when the device is closed or was deleted by someone else.
	Events() <-chan Event
	// SetTrainLimit tells the kernel the largest train (IP packet bytes) to hand to this device in one piece; larger
	// ones it splits into packets first. It is not a promise: be ready for MaxElement.
	SetTrainLimit(bytes int) error
	// Close deletes the interface and wakes all readers. It returns when none is left in a queue.
	Close() error
}

// Steerer is what a Device may also be: one that lets a program choose the queue of what the host sends.
type Steerer interface {
	// SetSteering makes the eBPF socket filter with descriptor fd choose: what it returns for a packet or train, which it
	// sees from the IP header on, is the queue, modulo 65536 and then the number of queues. A negative fd takes the
	// program away; then, as at first, a flow follows the queue on which its opposite direction was last written. The
	// device holds the program, the caller may close fd. Features().Steer tells whether there is one. It may be called
	// at any time by any goroutine; once the device is closed or gone it returns os.ErrClosed.
	SetSteering(fd int) error
}

// Event is the device's state after a change: whether it is administratively up, and its MTU.
type Event struct {
	Up  bool
	MTU int
}

// Features are the offloads of a Device, and what else it has on.
type Features struct {
	TSO bool // TCP trains, IPv4 and IPv6, in both directions
	USO bool // UDP trains, IPv4 and IPv6, in both directions (Linux 6.2 and later)
	// Steer is set while a program chooses the queues of what the host sends; it changes with SetSteering.
	Steer bool
}
