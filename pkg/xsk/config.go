// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"math/bits"
	"time"
)

// The defaults of Config.
const (
	DefaultFrameSize = 2048
	DefaultFrames    = 2048 // in each direction
	DefaultPatience  = 2 * time.Second
)

// maxFrames bounds RxFrames and TxFrames; the kernel's own limit is memory.
const maxFrames = 1 << 16

// RxHeadroom is what the kernel leaves free in front of each frame that is received (XDP_PACKET_HEADROOM), unless the
// XDP program moved its beginning.
const RxHeadroom = 256

// TxHeadroom is what stays free in front of each frame that is sent: the kernel looks there for the request of
// OffloadChecksum. It is a cache line, so frames begin on one.
const TxHeadroom = 64

// Config says how to open a Socket.
type Config struct {
	// Interface is the index of the device in the network namespace of the calling thread.
	Interface int
	// Queue is the queue to serve, from 0; one Socket serves one.
	Queue int
	// Mode is how; the zero value is Auto. With an XDP program in generic mode it must be Generic or Copy: a driver
	// that receives into the UMEM itself does not pass frames to such a program.
	Mode Mode
	// FrameSize is the size of a frame in bytes, 2048 or 4096 and no larger than a page; 0 is DefaultFrameSize. A
	// received packet must fit into FrameSize - RxHeadroom, a packet that is sent into FrameSize - TxHeadroom, unless
	// there is MultiBuffer.
	FrameSize int
	// RxFrames and TxFrames are how many frames wait for packets and for sending at most, powers of two from 64 to
	// 65,536; 0 is DefaultFrames. RxFrames bounds how many packets wait for Receive, and so the delay.
	RxFrames, TxFrames int
	// MultiBuffer asks for packets of several frames (XDP_USE_SG); without it the kernel drops what does not fit in
	// one.
	MultiBuffer bool
	// TxChecksum asks for OffloadChecksum.
	TxChecksum bool
	// NoHugePages leaves huge pages to others.
	NoHugePages bool
	// BusyPoll, if not 0, has WakeRx and WakeTx drive the device for so long (in whole microseconds) instead of its
	// interrupts (SO_PREFER_BUSY_POLL, Linux 5.11). It needs CAP_NET_ADMIN, and napi_defer_hard_irqs and
	// gro_flush_timeout of the device set. BusyPollBudget is how many frames at a time; 0 is the kernel's own, 8.
	BusyPoll       time.Duration
	BusyPollBudget int
	// Patience is how long Open waits for a queue that is in use: the kernel lets go of one some time after its last
	// Socket was closed. 0 is DefaultPatience, less than 0 not at all.
	Patience time.Duration
}

// complete returns c with its defaults filled in, or an error for what no kernel would take.
func (c Config) complete(pageSize int) (Config, error) {
	c.FrameSize = orDefault(c.FrameSize, DefaultFrameSize)
	c.RxFrames = orDefault(c.RxFrames, DefaultFrames)
	c.TxFrames = orDefault(c.TxFrames, DefaultFrames)
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	switch {
	case c.Interface <= 0:
		return c, fmt.Errorf("interface index %d is not one", c.Interface)
	case c.Queue < 0 || c.Queue > 0xffff:
		return c, fmt.Errorf("queue %d is not 0 to 65535", c.Queue)
	case c.Mode > Generic:
		return c, fmt.Errorf("mode %d is not one", c.Mode)
	case c.FrameSize != 2048 && c.FrameSize != 4096, c.FrameSize > pageSize:
		return c, fmt.Errorf("frame size %d is not 2048 or 4096, or more than a page", c.FrameSize)
	case c.BusyPoll < 0 || c.BusyPoll > time.Second || c.BusyPollBudget < 0 || c.BusyPollBudget > 0xffff:
		return c, errors.New("busy polling is not for less than nothing, or more than a second or 65,535 frames")
	}
	return c, errors.Join(checkFrames("RxFrames", c.RxFrames), checkFrames("TxFrames", c.TxFrames))
}

func orDefault(v, standard int) int {
	if v == 0 {
		return standard
	}
	return v
}

func checkFrames(name string, n int) error {
	if n < 64 || n > maxFrames || bits.OnesCount(uint(n)) != 1 {
		return fmt.Errorf("%s: %d is not a power of two from 64 to %d", name, n, maxFrames)
	}
	return nil
}
