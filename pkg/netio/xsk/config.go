// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"math/bits"
)

// The defaults of Config.
const (
	DefaultFrameSize = 2048
	DefaultFrames    = 2048 // in each direction
)

// maxFrames bounds RxFrames and TxFrames; the kernel's own limit is memory.
const maxFrames = 1 << 16

// RxHeadroom is the number of free bytes in front of each received frame (XDP_PACKET_HEADROOM), unless the XDP
// program has moved its start.
const RxHeadroom = 256

// TxHeadroom is the number of free bytes in front of each sent frame: the kernel reads the request of OffloadChecksum
// there. It is a cache line, so frames begin on one.
const TxHeadroom = 64

// Config holds the parameters of Open.
type Config struct {
	// Interface is the index of the device in the network namespace of the calling thread.
	Interface int
	// Queue is the number of the queue, from 0. A Socket serves one queue.
	Queue int
	// Mode is the AF_XDP mode; the zero value is Auto.
	Mode Mode
	// FrameSize is the size of a frame in bytes, 2048 or 4096 and no larger than a page; 0 means DefaultFrameSize. A
	// received packet must fit into FrameSize - RxHeadroom, a packet that is sent into FrameSize - TxHeadroom.
	FrameSize int
	// RxFrames and TxFrames are the numbers of frames for receiving and for sending, powers of two from 64 to 65,536; 0
	// means DefaultFrames. RxFrames bounds how many packets wait for Receive, and so the delay.
	RxFrames, TxFrames int
	// TxChecksum enables OffloadChecksum.
	TxChecksum bool
}

// complete returns c with its defaults filled in, or an error for values that no kernel accepts.
func (c Config) complete(pageSize int) (Config, error) {
	c.FrameSize = valueOrDefault(c.FrameSize, DefaultFrameSize)
	c.RxFrames = valueOrDefault(c.RxFrames, DefaultFrames)
	c.TxFrames = valueOrDefault(c.TxFrames, DefaultFrames)
	switch {
	case c.Interface <= 0:
		return c, fmt.Errorf("interface index %d is invalid", c.Interface)
	case c.Queue < 0 || c.Queue > 0xffff:
		return c, fmt.Errorf("queue %d is out of range: 0 to 65535", c.Queue)
	case c.Mode > Copy:
		return c, fmt.Errorf("mode %d is unknown", c.Mode)
	case c.FrameSize != 2048 && c.FrameSize != 4096, c.FrameSize > pageSize:
		return c, fmt.Errorf("frame size %d is invalid: 2048 or 4096, at most a page", c.FrameSize)
	}
	return c, errors.Join(checkFrames("RxFrames", c.RxFrames), checkFrames("TxFrames", c.TxFrames))
}

func valueOrDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

func checkFrames(name string, n int) error {
	if n < 64 || n > maxFrames || bits.OnesCount(uint(n)) != 1 {
		return fmt.Errorf("%s: %d is not a power of two from 64 to %d", name, n, maxFrames)
	}
	return nil
}
