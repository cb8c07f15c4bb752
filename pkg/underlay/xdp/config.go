// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/xsk"
)

// Program is the XDP program in front of the device: datapath.Classify, or a test's. Its methods are called by one
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
}

// Config says how to open a Port.
type Config struct {
	// UDP is the slow path. Its lanes must have a method FD() int: the descriptor to wait for, with poll(2), until there is
	// something for TryRecv. The Port owns it once opened. In generic mode it should be without UDP_GRO (see datapath.Classify).
	UDP underlay.Port
	// Program selects what AF_XDP receives. The Port attaches and detaches it; it stays the caller's to close, after the Port.
	// What it selects may be no longer than MaxFrame.
	Program Program
	// Device is the name of the network device whose queues are used: lane i has queue i. Lanes beyond its queues go by UDP.
	Device string
	// Mode is how frames come from and to the device; with xsk.Generic the program is attached in generic mode.
	Mode xsk.Mode
	// NoTrains promises that nothing arrives at a virtual device that is not one packet. Without it there is no xsk.Generic for
	// such a device: the program sees what the stack does, and from the other end of a veth, say, comes the train of UDP_SEGMENT
	// in one piece. One that fits into a frame looks like a datagram, whose parts nobody could tell any more. Hardware, and what
	// passes for it, has its trains turned off by the kernel (dev_disable_gro_hw). Native programs always see packets.
	NoTrains bool
	// Frames are how many wait for each lane in each direction at most: a power of two from 64 to 65,536, or 0 for the
	// default of package xsk. It bounds the delay.
	Frames int
	// FrameSize is 2048 or 4096; 0 is 2048.
	FrameSize int
	// Mark is the SO_MARK that the UDP port has: routing follows it.
	Mark uint32
	// NoChecksumOffload computes UDP checksums here even where the device, or the kernel for it, would.
	NoChecksumOffload bool
	// Linger has Recv hold its processor while traffic flows (package linger).
	Linger bool
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

func (c *Config) waiters() ([]waiter, error) {
	switch {
	case c.UDP == nil:
		return nil, errors.New("no UDP port")
	case c.Program == nil:
		return nil, errors.New("no XDP program")
	case c.Device == "":
		return nil, errors.New("no device")
	case c.FrameSize != 0 && c.FrameSize != 2048 && c.FrameSize != 4096:
		return nil, fmt.Errorf("frames of %d bytes", c.FrameSize)
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
		TxChecksum: !c.NoChecksumOffload,
	}
}
