// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// serveQueues assigns a processor to each receive queue of a device, as with a NIC's interrupts. Packets of one queue stay
// in order, and those of two queues may be reordered. By default a veth receives on the sending processor. The thread that
// mounted another /sys is not reused.
func serveQueues(h *netlab.Host, device, dir string) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		result <- func() error {
			if err := ownSysfs(h, dir); err != nil {
				return err
			}
			return errors.Join(steerQueues(filepath.Join(dir, "class/net", device)), unix.Unmount(dir, unix.MNT_DETACH))
		}()
	}()
	if err := <-result; err != nil {
		return fmt.Errorf("assigning processors to the queues of %s in %s: %w", device, h.Name(), err)
	}
	return nil
}

// ownSysfs mounts the host's sysfs, which shows the devices of the namespace that it was mounted in.
func ownSysfs(h *netlab.Host, dir string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	ns, err := netns.GetFromPath(h.Path())
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return err
	}
	return unix.Mount("sysfs", dir, "sysfs", 0, "")
}

// steerQueues writes one processor into each queue's mask (Documentation/networking/scaling.rst, "RPS").
func steerQueues(device string) error {
	all, err := filepath.Glob(filepath.Join(device, "queues", "rx-*"))
	if err != nil {
		return err
	}
	for q := range all {
		mask := fmt.Sprintf("%x", 1<<(q%min(runtime.NumCPU(), 32)))
		if err := os.WriteFile(filepath.Join(device, "queues", fmt.Sprintf("rx-%d", q), "rps_cpus"), []byte(mask), 0); err != nil {
			return err
		}
	}
	return nil
}

// errNoNetem is returned if the kernel has no netem.
var errNoNetem = errors.New("this kernel has no netem (make test-kernels runs kernels that have)")

// delayQueues gives the transmit queues of a device delays that differ by milliseconds, as on a NIC whose processors have
// different loads. Each queue stays in order. Packets of one flow on two queues arrive out of order.
func delayQueues(h *netlab.Host, device string) error {
	return h.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		at := link.Attrs().Index
		mq := netlink.QdiscAttrs{LinkIndex: at, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		if err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: mq, QdiscType: "mq"}); err != nil {
			return err
		}
		for q := range queues {
			attrs := netlink.QdiscAttrs{LinkIndex: at, Parent: netlink.MakeHandle(1, uint16(q+1))}
			if err := addNetem(attrs, netlink.NetemQdiscAttrs{Latency: 1000 + uint32(q%4)*2000}); err != nil {
				return err
			}
		}
		return nil
	})
}

func addNetem(at netlink.QdiscAttrs, how netlink.NetemQdiscAttrs) error {
	err := netlink.QdiscAdd(netlink.NewNetem(at, how))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return errNoNetem
	}
	return err
}

// sendByHash returns the average load of the right side's busiest queue, as a multiple of the mean, if each flow's port is
// chosen by its hash, as VXLAN does.
func (l *lab) sendByHash() (busiest float64) {
	l.Helper()
	const draws = 1000
	rng := rand.New(rand.NewPCG(1, 2))
	for range draws {
		var load [queues]int
		for range flowCount {
			from := spread.DefaultPorts.First + uint16(rng.IntN(spread.DefaultPorts.Len()))
			queue, err := l.rss.Queue(netip.AddrPortFrom(l.left.outer.Addr(), from), l.right.endpoint())
			expect.NoError(l, err)
			load[queue]++
		}
		busiest += float64(slices.Max(load[:])) * queues / flowCount
	}
	return busiest / draws
}
