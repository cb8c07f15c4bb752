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

// maxFinalRounds bounds the wait for the ring to run dry when the capture is stopped.
const maxFinalRounds = 50

// CaptureConfig configures a capture.
type CaptureConfig struct {
	// Device is the device's name in the host.
	Device string
	// SnapLen is how many bytes of each packet, from the Ethernet header, are kept; 0 means 256.
	SnapLen int
	// WholeOneIn keeps one in this many packets whole, at random; 0 keeps none, nor does a kernel that forbids eBPF.
	WholeOneIn int
	// Queues is the number of queues that Queues and ReceiveQueues report.
	Queues int
	// Handle gets every packet, from one goroutine. It must be quick: a full ring drops packets, which Stats reports.
	Handle func(Packet)
}

// Packet is one captured packet, or one train where the device carries trains.
type Packet struct {
	// Data begins with the Ethernet header and is valid until Handle returns.
	Data []byte
	// Len is the packet's length with its Ethernet header, of which Data may hold less.
	Len int
	// Outgoing is true for packets that the device sends, false for those that it receives.
	Outgoing bool
}

// CaptureStats counts over the whole capture.
type CaptureStats struct {
	Seen   uint64 // packets and trains that went to Handle
	Missed uint64 // packets and trains lost because Handle was too slow
}

// Capture receives what goes over a device, both ways, until it is closed.
type Capture struct {
	cfg    CaptureConfig
	fd     int
	ring   *ring
	queues *queueCounter // nil without eBPF

	stop atomic.Bool
	done chan struct{}
	once sync.Once
	err  error

	seen   uint64 // of the goroutine
	runErr error  // of the goroutine, until done

	mu    sync.Mutex
	stats CaptureStats
}

// Capture starts a capture on a device of the host. The caller closes it.
func (h *Host) Capture(cfg CaptureConfig) (*Capture, error) {
	if cfg.SnapLen == 0 {
		cfg.SnapLen = 256
	}
	c := &Capture{cfg: cfg, fd: -1, done: make(chan struct{})}
	offset, err := h.arrivalOffset(cfg.Device)
	if err == nil {
		err = h.Do(func() error { return c.open(offset) })
	}
	if err != nil {
		c.dispose()
		return nil, fmt.Errorf("capturing on %s in %s: %w", cfg.Device, h.name, explain(err))
	}
	go c.run()
	return c, nil
}

// arrivalOffset is that of a device in the host.
func (h *Host) arrivalOffset(device string) (offset int, err error) {
	err = h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err == nil {
			offset = arrivalOffset(link.Type())
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
	// Protocol 0 receives nothing: bind starts the flow when all is ready.
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

// setFilter cuts packets to SnapLen, and counts queues if eBPF is available.
func (c *Capture) setFilter(offset int) error {
	q, err := newQueueCounter(offset, c.cfg.SnapLen, c.cfg.WholeOneIn)
	if err != nil {
		return returnFilter(c.fd, c.cfg.SnapLen)
	}
	c.queues = q
	return q.attach(c.fd)
}

// returnFilter keeps n bytes of every packet; 0 drops all.
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
		c.publish()
		// Every block is handed over after retireMsecs: a silent wait longer than that is the end.
		n, err := unix.Poll(poll, 3*retireMsecs)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			c.runErr = fmt.Errorf("waiting for packets: %w", err)
			return
		case stopping && idle && n == 0:
			return
		case poll[0].Revents&unix.POLLERR != 0:
			// A device that went down: reading the error clears it.
			_, _ = unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		}
	}
}

func (c *Capture) handle(p Packet) {
	c.seen++
	c.cfg.Handle(p)
}

func (c *Capture) publish() {
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

// Queues counts what left the device, by transmit queue. Packets that the ring missed are counted too. It returns nil
// where the kernel or the process's capabilities forbid eBPF, and may not be called after Close.
func (c *Capture) Queues() ([]QueueCount, error) {
	if c.queues == nil {
		return nil, nil
	}
	return c.queues.read(0, c.cfg.Queues)
}

// ReceiveQueues is Queues for what arrived, by receive queue. A device that records none, as the loopback, counts nothing.
func (c *Capture) ReceiveQueues() ([]QueueCount, error) {
	if c.queues == nil {
		return nil, nil
	}
	return c.queues.read(maxQueues, c.cfg.Queues)
}

// Stop ends the capture and returns when Handle has had all packets that came before. Stats and Queues remain.
func (c *Capture) Stop() error {
	c.once.Do(func() {
		err := returnFilter(c.fd, 0)
		c.stop.Store(true)
		<-c.done
		c.err = errors.Join(err, c.runErr)
	})
	return c.err
}

// Close stops the capture and frees what it holds.
func (c *Capture) Close() error {
	err := c.Stop()
	c.dispose()
	return err
}

func (c *Capture) dispose() {
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
