// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// CableConfig configures a cable. The zero value is one queue, 1500 bytes and no addresses.
type CableConfig struct {
	// Queues is the number of transmit and of receive queues at both ends.
	Queues int
	// MTU of both ends, in bytes of IP packet.
	MTU int
	// RSS, if any, chooses the receive queue at both ends; without it the sending kernel's own choice of a transmit queue
	// does. It needs eBPF.
	RSS *RSS
	// AddrsA and AddrsB are the addresses of the ends, usable as soon as Cable returns.
	AddrsA, AddrsB []netip.Prefix
}

// Cable is a veth pair: what enters queue i at one end arrives on queue i at the other. Which one is the RSS's choice, or
// that of the kernel that sends.
type Cable struct {
	// DeviceA and DeviceB are the names of the ends in their hosts.
	DeviceA, DeviceB string
}

// Cable connects two different hosts and brings both ends up. It goes with its hosts.
func (l *Lab) Cable(a, b *Host, cfg CableConfig) (*Cable, error) {
	if a == b {
		return nil, errors.New("laying a cable: both ends are in one host")
	}
	var rss *ebpf.Program
	if cfg.RSS != nil {
		var err error
		if rss, err = loadRSS(cfg.RSS, cfg.Queues); err != nil {
			return nil, fmt.Errorf("laying a cable from %s to %s: %w", a.name, b.name, err)
		}
		defer rss.Close()
	}
	c := &Cable{DeviceA: a.nextDevice(), DeviceB: b.nextDevice()}
	if err := c.lay(a, b, cfg); err != nil {
		return nil, fmt.Errorf("laying a cable from %s to %s: %w", a.name, b.name, explain(err))
	}
	err := errors.Join(a.plugIn(c.DeviceA, rss, cfg.AddrsA), b.plugIn(c.DeviceB, rss, cfg.AddrsB))
	if err == nil {
		err = errors.Join(a.awaitUp(c.DeviceA), b.awaitUp(c.DeviceB))
	}
	if err != nil {
		return nil, errors.Join(err, a.removeLink(c.DeviceA))
	}
	return c, nil
}

// upTime bounds the wait for a device's queueing discipline: until a worker of the kernel's (linkwatch) has seen that the other end
// is up, all that leaves is dropped.
const upTime = 20 * time.Second

// awaitUp waits until what is sent by a device leaves. That it takes longer is no error.
func (h *Host) awaitUp(device string) error {
	return h.netlink(func(nl *netlink.Handle) error {
		for end := time.Now().Add(upTime); ; time.Sleep(time.Millisecond) {
			l, err := nl.LinkByName(device)
			if err != nil || l.Attrs().OperState == netlink.OperUp || time.Now().After(end) {
				return err
			}
		}
	})
}

// plugIn brings up a cable's end.
func (h *Host) plugIn(device string, rss *ebpf.Program, addrs []netip.Prefix) error {
	if rss != nil {
		if err := h.attachRSS(device, rss); err != nil {
			return err
		}
	}
	return h.SetUp(device, 0, addrs...)
}

func (c *Cable) lay(a, b *Host, cfg CableConfig) error {
	nsB, err := b.dup()
	if err != nil {
		return err
	}
	defer nsB.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = c.DeviceA
	attrs.NumTxQueues, attrs.NumRxQueues = max(cfg.Queues, 1), max(cfg.Queues, 1)
	if cfg.MTU != 0 {
		attrs.MTU = cfg.MTU
	}
	veth := netlink.NewVeth(attrs)
	veth.PeerName = c.DeviceB
	veth.PeerNamespace = netlink.NsFd(nsB)
	veth.PeerMTU = uint32(attrs.MTU)
	return a.netlink(func(nl *netlink.Handle) error { return nl.LinkAdd(veth) })
}
