// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// linkBatch is the number of elements that are read before due elements are written, and the
	// other way round.
	linkBatch = 64
	// linkTxQueue is the TAPs' transmit queue in elements. It is so long that the link's own queue drops first.
	linkTxQueue = 10000
	// linkNice is the nice value of a link's threads: a wire does not wait for a CPU.
	linkNice = -15
	// offloads are a veth's, so that trains pass the link in one piece.
	offloads    = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
	usoOffloads = unix.TUN_F_USO4 | unix.TUN_F_USO6 // Linux 6.2
)

// linkCopier copies elements between two TAPs, with the delay and the bottleneck of a Link.
type linkCopier struct {
	taps    [2]int
	stop    int // eventfd, readable when the threads are to end
	threads sync.WaitGroup
	dropped atomic.Uint64
}

// linkCable is Cable with a Link.
func (l *Lab) linkCable(a, b *Host, cfg CableConfig) (*Cable, error) {
	if cfg.RSS != nil || cfg.Link.Delay < 0 || cfg.Link.BitsPerSecond < 0 || (cfg.Link.BitsPerSecond > 0) != (cfg.Link.Queue > 0) {
		return nil, errors.New("creating a link: want no RSS, no negative delay, and a rate and a queue or none of them")
	}
	k := &linkCopier{taps: [2]int{-1, -1}, stop: -1}
	c := &Cable{DeviceA: a.nextDevice(), DeviceB: b.nextDevice(), copier: k}
	err := errors.Join(k.open(0, a, c.DeviceA, cfg.MTU), k.open(1, b, c.DeviceB, cfg.MTU))
	if err == nil {
		err = errors.Join(a.SetUp(c.DeviceA, 0, cfg.AddrsA...), b.SetUp(c.DeviceB, 0, cfg.AddrsB...))
	}
	if err == nil {
		err = k.start(*cfg.Link)
	}
	if err != nil {
		k.close()
		return nil, fmt.Errorf("creating a link from %s to %s: %w", a.name, b.name, explain(err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.links = append(l.links, k)
	return c, nil
}

// open creates one TAP in its host.
func (k *linkCopier) open(end int, h *Host, device string, mtu int) error {
	err := h.Do(func() (err error) {
		k.taps[end], err = openTAP(device)
		return err
	})
	if err != nil {
		return err
	}
	return h.netlink(func(nl *netlink.Handle) error {
		tap, err := nl.LinkByName(device)
		if err == nil {
			err = nl.LinkSetTxQLen(tap, linkTxQueue)
		}
		if err == nil && mtu != 0 {
			err = nl.LinkSetMTU(tap, mtu)
		}
		return err
	})
}

func openTAP(device string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	ifr, err := unix.NewIfreq(device)
	if err == nil {
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err == nil && unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads|usoOffloads) != nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("opening TAP %s: %w", device, err)
	}
	return fd, nil
}

func (k *linkCopier) start(l Link) (err error) {
	if k.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	for from, in := range k.taps {
		d := &linkDirection{in: in, out: k.taps[1-from], stop: k.stop, queue: newLinkQueue(l), dropped: &k.dropped}
		k.threads.Go(d.run)
	}
	return nil
}

// close ends the threads and removes the TAPs.
func (k *linkCopier) close() {
	if k.stop >= 0 {
		_, _ = unix.Write(k.stop, binary.NativeEndian.AppendUint64(nil, 1))
		k.threads.Wait()
	}
	for _, fd := range append(k.taps[:], k.stop) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// linkDirection is one thread, which copies from one TAP to the other.
type linkDirection struct {
	in, out, stop int
	queue         *linkQueue
	dropped       *atomic.Uint64
}

func (d *linkDirection) run() {
	runtime.LockOSThread() // and never unlocked: the thread ends with its priority
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), linkNice)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for {
		more := d.read()
		if !d.write() {
			more = true
		}
		if d.wait(more) {
			return
		}
	}
}

// read takes a batch from the TAP and reports whether there may be more. If the ring is full, more waits in the TAP's queue: that is
// this program's limit and not the Link's.
func (d *linkDirection) read() bool {
	for range linkBatch {
		buf := d.queue.reserve()
		if buf == nil {
			return false
		}
		n, err := unix.Read(d.in, buf)
		if err != nil {
			return errors.Is(err, unix.EINTR)
		}
		if !d.queue.commit(monotonic(), n, wireLen(buf[:n])) {
			d.dropped.Add(1)
		}
	}
	return true
}

// write writes a batch of the elements that are due and reports whether those were all.
func (d *linkDirection) write() bool {
	for range linkBatch {
		frame, due, ok := d.queue.next()
		if !ok || due > monotonic() {
			return true
		}
		if _, err := unix.Write(d.out, frame); err != nil {
			d.dropped.Add(1)
		}
		d.queue.pop()
	}
	return false
}

// wait waits for something to read or to write, not at all if there is more. It reports whether
// the link is closed or a TAP gone.
func (d *linkDirection) wait(more bool) bool {
	var timeout *unix.Timespec
	if _, due, ok := d.queue.next(); more || ok {
		left := int64(0)
		if !more {
			left = max(due-monotonic(), 0)
		}
		t := unix.NsecToTimespec(left)
		timeout = &t
	}
	fds := []unix.PollFd{{Fd: int32(d.in), Events: unix.POLLIN}, {Fd: int32(d.stop), Events: unix.POLLIN}}
	if d.queue.reserve() == nil {
		fds[0].Fd = -1 // ignored: there is no room
	}
	_, err := unix.Ppoll(fds, timeout, nil)
	return fds[0].Revents&^unix.POLLIN != 0 || fds[1].Revents != 0 || (err != nil && !errors.Is(err, unix.EINTR))
}

var monotonicBase = time.Now()

// monotonic is the time in nanoseconds on a clock that never goes back.
func monotonic() int64 { return int64(time.Since(monotonicBase)) }

// Offsets in struct virtio_net_hdr (linux/virtio_net.h) and in the TCP header.
const (
	vnetGSOType   = 1
	vnetGSOSize   = 4
	vnetCsumStart = 6
	vnetLen       = 10
	tcpDataOffset = 12
	udpHeaderLen  = 8
	gsoUDP        = 5 // VIRTIO_NET_HDR_GSO_UDP_L4
)

// wireLen is the length of all the packets into which an element would be split: a train has one copy of its headers.
func wireLen(frame []byte) int {
	if len(frame) < vnetLen {
		return 0
	}
	packet := frame[vnetLen:]
	size := int(binary.NativeEndian.Uint16(frame[vnetGSOSize:]))
	head := int(binary.NativeEndian.Uint16(frame[vnetCsumStart:]))
	switch {
	case frame[vnetGSOType] == 0 || size == 0:
		return len(packet)
	case frame[vnetGSOType] == gsoUDP:
		head += udpHeaderLen
	case head+tcpDataOffset < len(packet):
		head += int(packet[head+tcpDataOffset]>>4) * 4
	}
	if head >= len(packet) {
		return len(packet)
	}
	segments := (len(packet) - head + size - 1) / size
	return len(packet) + (segments-1)*head
}
