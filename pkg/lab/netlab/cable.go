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
	// RSS, if not nil, selects the receive queue at both ends, with an eBPF program. Without it the receive queue is the transmit
	// queue that the sending kernel selects.
	RSS *RSS
	// Link, if not nil, makes the cable a pair of TAPs of one queue, between which this process
	// copies packets. It copies with a delay, and with a bottleneck if the Link has one.
	Link *Link
	// AddrsA and AddrsB are the addresses of the ends, usable as soon as Cable returns.
	AddrsA, AddrsB []netip.Prefix
}

// Cable is a veth pair. A packet sent on transmit queue i of one end arrives on receive queue i of the other.
type Cable struct {
	// DeviceA and DeviceB are the names of the ends in their hosts.
	DeviceA, DeviceB string

	copier *linkCopier // nil unless the cable has a Link
}

// Dropped counts the packets and trains that a Link has dropped, in both directions; 0 for a cable without one.
func (c *Cable) Dropped() uint64 {
	if c.copier == nil {
		return 0
	}
	return c.copier.dropped.Load()
}

// Cable connects two different hosts and brings both ends up. Closing the Lab removes it.
func (l *Lab) Cable(a, b *Host, cfg CableConfig) (*Cable, error) {
	if a == b {
		return nil, errors.New("creating a cable: both ends are in one host")
	}
	if cfg.Link != nil {
		return l.linkCable(a, b, cfg)
	}
	var rss *ebpf.Program
	if cfg.RSS != nil {
		var err error
		if rss, err = loadRSS(cfg.RSS, cfg.Queues); err != nil {
			return nil, fmt.Errorf("creating a cable from %s to %s: %w", a.name, b.name, err)
		}
		defer rss.Close()
	}
	c := &Cable{DeviceA: a.nextDevice(), DeviceB: b.nextDevice()}
	if err := c.createVeth(a, b, cfg); err != nil {
		return nil, fmt.Errorf("creating a cable from %s to %s: %w", a.name, b.name, explain(err))
	}
	err := errors.Join(a.configureEnd(c.DeviceA, rss, cfg.AddrsA), b.configureEnd(c.DeviceB, rss, cfg.AddrsB))
	if err == nil {
		err = errors.Join(a.waitUntilUp(c.DeviceA), b.waitUntilUp(c.DeviceB))
	}
	if err != nil {
		return nil, errors.Join(err, a.RemoveLink(c.DeviceA))
	}
	return c, nil
}

// upTimeout bounds the wait for a device's carrier. Until the kernel's linkwatch worker has seen that the other end is up, the device
// drops every packet that it sends.
const upTimeout = 20 * time.Second

// waitUntilUp waits until the device is operationally up. A timeout is not an error.
func (h *Host) waitUntilUp(device string) error {
	return h.netlink(func(nl *netlink.Handle) error {
		for end := time.Now().Add(upTimeout); ; time.Sleep(time.Millisecond) {
			l, err := nl.LinkByName(device)
			if err != nil || l.Attrs().OperState == netlink.OperUp || time.Now().After(end) {
				return err
			}
		}
	})
}

// configureEnd attaches the RSS program, if any, to one end of a cable, adds its addresses, and brings it up.
func (h *Host) configureEnd(device string, rss *ebpf.Program, addrs []netip.Prefix) error {
	if rss != nil {
		if err := h.attachRSS(device, rss); err != nil {
			return err
		}
	}
	return h.SetUp(device, 0, addrs...)
}

func (c *Cable) createVeth(a, b *Host, cfg CableConfig) error {
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
