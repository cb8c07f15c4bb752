// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"

	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
)

// MaxTrain is the largest train in bytes: the virtio-net header and a packet of 64 KiB less one byte.
const MaxTrain = offload.VnetHdrLen + 65535

// MaxBuffers is the largest number of buffers in one Write: a header and a payload for each of 64 packets, and two
// more.
const MaxBuffers = 130

// MaxReadFDs is the largest number of descriptors for which one ReadOr waits.
const MaxReadFDs = 64

// BigTrain is the size in bytes above which a train ends a Read.
const BigTrain = 4 << 10

// ErrTooManyBuffers is returned by Write for more than MaxBuffers buffers.
var ErrTooManyBuffers = errors.New("too many buffers in one write")

// Queue is one queue of a Device. One goroutine may call Read while another calls Write; neither method may be called
// by two goroutines at once. Neither allocates.
//
// In this package a train is one packet or one GSO super-packet, behind a virtio-net header of offload.VnetHdrLen bytes.
type Queue interface {
	// Read blocks until the queue has a train. It reads trains into bufs[i], which must hold MaxTrain bytes, and
	// stores their lengths in sizes[i]. It continues without blocking until the queue is empty or bufs are used up. A
	// train larger than 4 KiB also ends it, because that is worth sending at once. Read returns os.ErrClosed once the
	// device is closed or deleted, and after StopReading.
	Read(bufs [][]byte, sizes []int) (int, error)
	// ReadOr is Read that also returns, with 0, when one of the given descriptors becomes
	// writable, and now and then. It returns often if there are more than MaxReadFDs descriptors,
	// and ignores the rest of them. It ignores negative ones.
	ReadOr(bufs [][]byte, sizes []int, writable []int32) (int, error)
	// TryRead is Read without waiting, for the same goroutine. It returns 0 when the queue is empty. The next Read
	// returns its errors.
	TryRead(bufs [][]byte, sizes []int) int
	// Write writes one train from at most MaxBuffers buffers; buffers[0] starts with the virtio-net header. It returns
	// os.ErrClosed once the device is closed or deleted. Any other error concerns this train or is transient: EINVAL
	// for a malformed train, EIO while the interface is down.
	Write(buffers [][]byte) error
	// Inject is Write for any number of goroutines, concurrent with the writing goroutine. It takes a lock.
	Inject(buffers [][]byte) error
}

// Device is one TUN interface with its queues.
type Device interface {
	// Name returns the interface's name at the time it was opened.
	Name() string
	// Queues returns all queues of the device. Their number is fixed.
	Queues() []Queue
	// Features returns the enabled offloads, and whether a steering program is set.
	Features() Features
	// Events delivers state changes, beginning with the state at open. A slow reader sees only the last one. The
	// channel is closed when the device is closed or the interface is deleted.
	Events() <-chan Event
	// StopReading makes Read and ReadOr return os.ErrClosed, and returns after the last reader has left. Packets from the host wait in the
	// queues. Writing still works.
	StopReading() error
	// ResumeReading ends what StopReading has begun. It returns os.ErrClosed once the device is closed.
	ResumeReading() error
	// Close deletes the interface, unless it is persistent, and wakes all readers. It returns after the last reader
	// has left.
	Close() error
}

// Steerer is an optional interface of a Device: an eBPF program selects the queue of each packet that the host sends.
type Steerer interface {
	// SetSteering attaches the eBPF socket filter with descriptor fd (TUNSETSTEERINGEBPF). The program sees a packet
	// or train from the IP header on. Its return value, modulo 65536 and then modulo the number of queues, selects
	// the queue. A negative fd detaches the program. Without a program a flow follows the queue on which its opposite
	// direction was last written. The device holds a reference to the program, so the caller may close fd.
	// Features().Steer reports whether a program is set. SetSteering may be called at any time by any goroutine. It
	// returns os.ErrClosed once the device is closed or deleted.
	SetSteering(fd int) error
}

// DropCounter is an optional interface of a Device.
type DropCounter interface {
	// QueueDrops returns the number of packets and trains that the kernel has dropped in front of
	// Read because a queue was full. It counts from the interface's creation, which may be before
	// Open. It asks the kernel. Any goroutine may call it, also after Close.
	QueueDrops() uint64
}

// Event is the device's state after a change: whether it is administratively up, and its MTU in bytes.
type Event struct {
	Up  bool
	MTU int
}

// Features are the offloads of a Device, and whether it has a steering program.
type Features struct {
	TSO bool // TCP trains, IPv4 and IPv6, in both directions
	USO bool // UDP trains, IPv4 and IPv6, in both directions (Linux 6.2 and later)
	// Steer is set while a steering program selects the queues; it changes with SetSteering.
	Steer bool
	// NetNS is the inode of the network namespace in which the interface was last seen, 0 if unknown.
	NetNS uint64 `json:",omitempty"`
}

// Indexed is an optional interface of a Device.
type Indexed interface {
	// Index returns the interface index in the network namespace where the Device was opened, 0 while the interface is in another one.
	Index() int
}
