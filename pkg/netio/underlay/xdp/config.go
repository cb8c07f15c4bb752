// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// Program is the XDP program in front of the device: programs.Classify, or a test's. Its methods are called by one
// goroutine, whose thread is in the Port's network namespace.
type Program interface {
	// Attach puts it in front of a device's receiver, natively or in generic mode.
	Attach(device int, generic bool) error
	// Detach takes it off. It is no error that it is not attached, or that its device is gone.
	Detach() error
	// SetSocket gives the data messages of a queue to an AF_XDP socket; RemoveSocket undoes it.
	SetSocket(queue, fd int) error
	RemoveSocket(queue int) error
	// SetAddresses says which addresses are this host's.
	SetAddresses(addresses []netip.Addr) error
	// Close ends it, after Detach.
	Close() error
}

// Binding is a device and how it is used. The zero Way is none: all goes by the UDP port. Ways are comparable.
type Binding struct {
	// Device is the name of the network device whose queues are used: lane i has queue i. Lanes beyond its queues go by UDP.
	Device string
	// Mode is how frames come from and to the device; with xsk.Generic the program is attached in generic mode.
	Mode xsk.Mode
	// NoTrains promises that nothing arrives at a virtual device that is not one packet. Without it there is no xsk.Generic for
	// such a device: the program sees what the stack does, and from the other end of a veth, say, comes the train of UDP_SEGMENT
	// in one piece. One that fits into a frame looks like a datagram, whose parts nobody could tell any more. Hardware, and what
	// passes for it, has its trains turned off by the kernel (dev_disable_gro_hw). Native programs always see packets.
	NoTrains bool
	// FrameSize is 2048 or 4096; 0 is 2048.
	FrameSize int
	// Program selects what AF_XDP receives. The Port attaches, detaches and closes it. What it selects may be no longer than
	// MaxFrame.
	Program Program
	// NoSockets has the program work alone: no lane gets an AF_XDP socket, and all goes by the UDP port.
	NoSockets bool
	// Final says, of a Way without a device, that no change of the network can make it another one: so none is waited for.
	Final bool
}

// Config says how to open a Port.
type Config struct {
	// UDP is the slow path. Its lanes must have a method FD() int: the descriptor to wait for, with poll(2), until there is
	// something for TryRecv. The Port owns it once opened. In generic mode it should be without UDP_GRO (see programs.Classify).
	UDP underlay.Port
	// Binding is the first one, and the only one without Choose.
	Binding
	// Choose, if set, is asked for the Way at first, whenever the network has changed, and after Reconsider. One goroutine calls it, whose
	// thread is in the Port's network namespace. Another Way takes the place of the present one, whose program is closed.
	Choose func() Binding
	// Changed, if set, is told by the same goroutine how many lanes have an AF_XDP socket on the Way's device, and why the others have
	// none, when that has become other, or with NoSockets the Program. What may pass within a second is not told.
	Changed func(ready int, why error)
	// Frames are how many wait for each lane in each direction at most: a power of two from 64 to 65,536, or 0 for the
	// default of package xsk. It bounds the delay.
	Frames int
	// Mark is the SO_MARK that the UDP port has: routing follows it.
	Mark uint32
	// NoChecksumOffload computes UDP checksums here even where the device, or the kernel for it, would.
	NoChecksumOffload bool
	// BusyPoll has Recv hold its processor while traffic flows (package linger).
	BusyPoll bool
}

// MaxFrame is the longest frame that a Port with that Config.FrameSize receives, in bytes from the Ethernet header on.
func MaxFrame(frameSize int) int {
	if frameSize == 0 {
		frameSize = xsk.DefaultFrameSize
	}
	return frameSize - xsk.RxHeadroom
}

// waiter is a lane of the UDP port that can be waited for.
type waiter interface {
	underlay.Lane
	FD() int
}

// check refuses a Way that cannot be.
func (w *Binding) check() error {
	switch {
	case w.Program == nil:
		return errors.New("no XDP program")
	case w.Device == "":
		return errors.New("no device")
	case w.FrameSize != 0 && w.FrameSize != 2048 && w.FrameSize != 4096:
		return fmt.Errorf("frames of %d bytes", w.FrameSize)
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

// socket is the configuration of a lane's AF_XDP socket.
func (c *Config) socket(device, queue int) xsk.Config {
	return xsk.Config{
		Interface: device, Queue: queue, Mode: c.Mode, FrameSize: c.FrameSize, RxFrames: c.Frames, TxFrames: c.Frames,
	}
}
