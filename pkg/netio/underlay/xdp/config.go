// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// Program is the XDP program that is attached to the device: programs.Classify, or a test's program. One goroutine
// calls its methods. The goroutine's thread is in the Port's network namespace.
type Program interface {
	// Attach attaches the program to a device's receive path, natively.
	Attach(device int) error
	// Detach detaches the program. It returns no error if the program is not attached, or if its device is gone.
	Detach() error
	// SetSocket redirects the data messages of a queue to an AF_XDP socket. RemoveSocket undoes it.
	SetSocket(queue, fd int) error
	RemoveSocket(queue int) error
	// SetAddresses sets the list of this host's addresses.
	SetAddresses(addresses []netip.Addr) error
	// AddSourcePort adds a port from which the UDP port sends, because the program also limits
	// initiations to it.
	AddSourcePort(port uint16) error
	// Close releases the program. It is called after Detach.
	Close() error
}

// Binding is a device and the mode in which it is used. With the zero Binding everything goes through the UDP port.
// Bindings are comparable.
type Binding struct {
	// Device is the name of the network device whose queues are used: lane i has queue i. Lanes beyond the number of
	// queues use UDP.
	Device string
	// Mode selects how frames come from and go to the device.
	Mode xsk.Mode
	// FrameSize is 2048 or 4096 bytes; 0 means 2048.
	FrameSize int
	// Program selects the packets that AF_XDP receives, which are at most MaxFrame bytes long. The Port attaches,
	// detaches and closes it.
	Program Program
	// Final says that no change of the network can lead to another Binding. It applies to a Binding without a device.
	// The Port then does not watch the network.
	Final bool
}

// Config configures a Port.
type Config struct {
	// UDP is the slow path. Its lanes must have a method FD() int. It returns the descriptor to wait for, with poll(2),
	// until TryRecv has something. The Port owns UDP after a successful Open.
	UDP underlay.Port
	// Binding is the initial Binding, and the only one if Choose is nil.
	Binding
	// Choose, if set, returns the Binding to use. It is called at Open, after each change of the network, and after
	// Reconsider. One goroutine calls it, whose thread is in the Port's network namespace. A different Binding replaces
	// the present one, whose program is then closed.
	Choose func() Binding
	// Changed, if set, is called by the same goroutine when the outcome of a Binding changes. It gets the number of
	// lanes with an AF_XDP socket on the device, and the reason why the others have none. Failures that may pass within a second are not reported.
	Changed func(ready int, why error)
	// Mark is the SO_MARK of the UDP port. Routing depends on it.
	Mark uint32
	// NoChecksumOffload computes UDP checksums in software, even where the device, or the kernel for it, would compute
	// them.
	NoChecksumOffload bool
	// reviewInterval is the time between two reviews, for tests; 0: defaultReviewInterval.
	reviewInterval time.Duration
	// progress replaces xsk.Socket.TxProgress in tests; nil for none.
	progress func() (done uint32, outstanding int)
	// MayWait, if set, reports whether a datagram from the UDP port may wait for a millisecond, as
	// a flood of handshake messages should. It gets the first of the datagrams that the kernel
	// coalesced. The goroutines that receive call it.
	MayWait func(datagram []byte) bool
	// BusyPoll makes Recv keep its CPU while traffic flows (package busypoll).
	BusyPoll bool
}

// MaxFrame returns the length of the longest frame that a Port with that Config.FrameSize receives, in bytes, from the
// Ethernet header on.
func MaxFrame(frameSize int) int {
	if frameSize == 0 {
		frameSize = xsk.DefaultFrameSize
	}
	return frameSize - xsk.RxHeadroom
}

// waiter is a lane of the UDP port with a descriptor for poll(2).
type waiter interface {
	underlay.Lane
	FD() int
}

// check returns an error for an invalid Binding.
func (b *Binding) check() error {
	switch {
	case b.Program == nil:
		return errors.New("no XDP program")
	case b.Device == "":
		return errors.New("no device")
	case b.FrameSize != 0 && b.FrameSize != 2048 && b.FrameSize != 4096:
		return fmt.Errorf("frame size of %d bytes: must be 2048 or 4096", b.FrameSize)
	}
	return nil
}

func (c *Config) waiters() ([]waiter, error) {
	switch {
	case c.UDP == nil:
		return nil, errors.New("no UDP port")
	case c.Choose == nil:
		if err := c.check(); err != nil {
			return nil, err
		}
	}
	list := make([]waiter, c.UDP.Lanes())
	for i := range list {
		w, ok := c.UDP.Lane(i).(waiter)
		if !ok {
			return nil, fmt.Errorf("%w: the UDP port's lanes have no descriptor to wait for", errors.ErrUnsupported)
		}
		list[i] = w
	}
	return list, nil
}
