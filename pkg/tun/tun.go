// SPDX-License-Identifier: Apache-2.0

// Package tun is the inner edge: a multi-queue TUN device with checksum and segmentation offloads. It holds the
// contract (Device, Queue), the Linux implementation, the in-memory fake and the contract test that both pass.
package tun

// MaxElement is the largest element a queue returns or takes: the virtio-net header and a 64 KiB packet.
const MaxElement = 10 + 65535

// Queue is one queue of a Device. One goroutine may call Read while another calls Write; neither method may be called
// by two goroutines at once. Neither allocates.
type Queue interface {
	// Read blocks until the queue has something, then reads elements (a virtio-net header of offload.VnetHdrLen bytes,
	// then one packet or one train) into bufs[i], which must hold MaxElement bytes, and stores their lengths in
	// sizes[i]. It goes on without blocking until the queue is empty, bufs are used up, or the element just read was
	// larger than 4 KiB: a train is worth an immediate send. It returns os.ErrClosed once the device is closed or gone.
	Read(bufs [][]byte, sizes []int) (int, error)
	// Write writes one element given in parts; parts[0] starts with the virtio-net header.
	Write(parts [][]byte) error
}

// Device is one TUN interface with its queues.
type Device interface {
	// Name is the interface's name, as the kernel has it.
	Name() string
	// Queues are all queues of the device; their number is fixed.
	Queues() []Queue
	// Features says which offloads are on.
	Features() Features
	// Events delivers state changes, beginning with the state at open. It is closed when the device is closed or was
	// deleted by someone else.
	Events() <-chan Event
	// SetTrainLimit tells the kernel the largest train (IP packet bytes) worth building for this device.
	SetTrainLimit(bytes int) error
	// Close deletes the interface and wakes all readers.
	Close() error
}

// Event is the device's state after a change: whether it is administratively up, and its MTU.
type Event struct {
	Up  bool
	MTU int
}

// Features are the offloads of a Device.
type Features struct {
	TSO bool // TCP trains, IPv4 and IPv6, in both directions
	USO bool // UDP trains, IPv4 and IPv6, in both directions (Linux 6.2 and later)
}
