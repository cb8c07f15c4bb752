// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxFinalRounds limits how often the ring is read after the capture is stopped.
const maxFinalRounds = 50

// CaptureConfig configures a capture.
type CaptureConfig struct {
	// Device is the device's name in the host.
	Device string
	// SnapLen is the number of bytes kept of each packet, beginning with the Ethernet header; 0 means 256.
	SnapLen int
	// FullPacketOneIn captures one in this many packets, at random, without truncation. 0 truncates all packets, as does a
	// kernel that forbids eBPF.
	FullPacketOneIn int
	// Queues is the number of queues that Queues and ReceiveQueues report.
	Queues int
	// Handle is called with every packet, by one goroutine. While it runs the ring may fill up and drop packets; Stats
	// counts them.
	Handle func(Packet)
}

// Packet is one captured packet, or one train where the device carries trains.
type Packet struct {
	// Data begins with the Ethernet header and is valid until Handle returns.
	Data []byte
	// Len is the length of the untruncated packet, with its Ethernet header.
	Len int
	// Outgoing is true for packets that the device sends, false for packets that it receives.
	Outgoing bool
}

// CaptureStats counts since the capture began.
type CaptureStats struct {
	Seen   uint64 // packets and trains passed to Handle
	Missed uint64 // packets and trains lost because Handle was too slow
}

// Capture receives the packets that a device sends and receives, until it is closed.
type Capture struct {
	cfg    CaptureConfig
	fd     int
	ring   *ring
	queues *queueCounter // nil without eBPF

	stop atomic.Bool
	done chan struct{}
	once sync.Once
	err  error

	seen   uint64 // owned by the capture goroutine
	runErr error  // owned by the capture goroutine until done is closed

	mu    sync.Mutex
	stats CaptureStats
}

// Capture starts a capture on a device of the host. The caller closes it.
func (h *Host) Capture(cfg CaptureConfig) (*Capture, error) {
	if cfg.SnapLen == 0 {
		cfg.SnapLen = 256
	}
	c := &Capture{cfg: cfg, fd: -1, done: make(chan struct{})}
	offset, err := h.rxQueueOffset(cfg.Device)
	if err == nil {
		err = h.Do(func() error { return c.open(offset) })
	}
	if err != nil {
		c.release()
		return nil, fmt.Errorf("capturing on %s in %s: %w", cfg.Device, h.name, explain(err))
	}
	go c.run()
	return c, nil
}

// rxQueueOffset returns the offset of a device in the host; see the function of this name.
func (h *Host) rxQueueOffset(device string) (offset int, err error) {
	err = h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err == nil {
			offset = rxQueueOffset(link.Type())
		}
		return err
	})
	return offset, err
}

func (c *Capture) open(offset int) error {
	dev, err := net.InterfaceByName(c.cfg.Device)
	if err != nil {
		return err
	}
	// A socket with protocol 0 receives nothing. bind sets the protocol, and so starts the capture.
	if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening a packet socket: %w", err)
	}
	if c.ring, err = newRing(c.fd); err != nil {
		return err
	}
	if err := c.setFilter(offset); err != nil {
		return err
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	if err := unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}); err != nil {
		return fmt.Errorf("binding to %s: %w", c.cfg.Device, err)
	}
	return nil
}

// setFilter truncates packets to SnapLen, and counts packets by queue if eBPF is available.
func (c *Capture) setFilter(offset int) error {
	q, err := newQueueCounter(offset, c.cfg.SnapLen, c.cfg.FullPacketOneIn)
	if err != nil {
		return returnFilter(c.fd, c.cfg.SnapLen)
	}
	c.queues = q
	return q.attach(c.fd)
}

// returnFilter sets a socket filter that keeps the first n bytes of every packet; 0 drops all packets.
func returnFilter(fd, n int) error {
	ret := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(n)}
	prog := unix.SockFprog{Len: 1, Filter: &ret}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		return fmt.Errorf("setting the capture filter: %w", err)
	}
	return nil
}

func (c *Capture) run() {
	defer close(c.done)
	poll := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
	for rounds := 0; rounds < maxFinalRounds; {
		stopping := c.stop.Load()
		if stopping {
			rounds++
		}
		idle := !c.ring.read(c.handle)
		c.updateStats()
		// The kernel hands over every block within retireTimeoutMs. If none comes in three times that, the ring is empty.
		n, err := unix.Poll(poll, 3*retireTimeoutMs)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			c.runErr = fmt.Errorf("waiting for packets: %w", err)
			return
		case stopping && idle && n == 0:
			return
		case poll[0].Revents&unix.POLLERR != 0:
			// The device went down. Reading the socket's error clears it.
			_, _ = unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		}
	}
}

func (c *Capture) handle(p Packet) {
	c.seen++
	c.cfg.Handle(p)
}

func (c *Capture) updateStats() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Seen = c.seen
	// Reading the kernel's statistics resets them.
	if st, err := unix.GetsockoptTpacketStatsV3(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		c.stats.Missed += uint64(st.Drops)
	}
}

// Stats may be called by any goroutine, also after Close.
func (c *Capture) Stats() CaptureStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Queues returns the packets sent by the device, by transmit queue, including packets that the
// ring missed. It returns nil where the kernel or the process's capabilities forbid eBPF. It must
// not be called after Close.
func (c *Capture) Queues() ([]QueueCount, error) {
	if c.queues == nil {
		return nil, nil
	}
	return c.queues.read(0, c.cfg.Queues)
}

// Stop ends the capture, and returns after Handle was called with all packets captured before. Stats and Queues can still be
// called.
func (c *Capture) Stop() error {
	c.once.Do(func() {
		err := returnFilter(c.fd, 0)
		c.stop.Store(true)
		<-c.done
		c.err = errors.Join(err, c.runErr)
	})
	return c.err
}

// Close stops the capture and releases its resources.
func (c *Capture) Close() error {
	err := c.Stop()
	c.release()
	return err
}

func (c *Capture) release() {
	if c.queues != nil {
		c.queues.close()
	}
	if c.ring != nil {
		_ = c.ring.close()
	}
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
	}
	c.queues, c.ring, c.fd = nil, nil, -1
}
