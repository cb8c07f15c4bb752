// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netlab"
)

// cardQueues is how many queue pairs each network card of a machine has: for each processor one to receive and send, and one for
// what XDP sends, as virtio_net wants it.
const cardQueues = 2 * processors

// cards are two virtio network cards of a machine, with a bridge between them in a namespace of the host: no backend of QEMU's own
// has several queues.
type cards struct {
	lab  *netlab.Lab
	host *netlab.Host
}

// newCards makes what the cards are plugged into. Without the privileges for that the error wraps netlab.ErrPrivileges.
func newCards() (c *cards, err error) {
	lab, err := netlab.New("vm")
	if err != nil {
		return nil, err
	}
	c = &cards{lab: lab}
	if c.host, err = lab.Host("wire"); err == nil {
		err = c.host.Do(layWire)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making network cards: %w", err), lab.Close())
	}
	return c, nil
}

// layWire makes a TAP device for each card, and a bridge between them, in the calling thread's namespace.
func layWire() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = "wire"
	if err := errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge)); err != nil {
		return err
	}
	for _, name := range tapNames() {
		tap := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.TUNTAP_MODE_TAP, Queues: 1}
		tap.Name = name
		tap.Flags = netlink.TUNTAP_MULTI_QUEUE_DEFAULTS | netlink.TUNTAP_VNET_HDR
		if err := netlink.LinkAdd(tap); err != nil {
			return fmt.Errorf("adding %s: %w", name, err)
		}
		for _, f := range tap.Fds { // the device stays
			_ = f.Close()
		}
		if err := errors.Join(netlink.LinkSetMaster(tap, bridge), netlink.LinkSetUp(tap)); err != nil {
			return fmt.Errorf("plugging in %s: %w", name, err)
		}
	}
	return nil
}

func tapNames() []string { return []string{"card0", "card1"} }

// start starts QEMU where the cards are; without cards anywhere.
func (c *cards) start(cmd *exec.Cmd) error {
	if c == nil {
		return cmd.Start()
	}
	return c.host.Do(cmd.Start)
}

// args are QEMU's arguments. Zero-copy of virtio_net needs a device that the kernel maps memory for (VIRTIO_F_ACCESS_PLATFORM).
func (c *cards) args() (args []string) {
	if c == nil {
		return nil
	}
	for i, name := range tapNames() {
		net := "net" + strconv.Itoa(i)
		args = append(
			args,
			"-netdev", fmt.Sprintf("tap,id=%s,ifname=%s,queues=%d,vhost=off,script=no,downscript=no", net, name, cardQueues),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=02:00:00:00:00:0%d,mq=on,vectors=%d,iommu_platform=on,disable-legacy=on,romfile=",
				net, i+1, 2*cardQueues+2),
		)
	}
	return args
}

// close takes all of it away.
func (c *cards) close() error {
	if c == nil {
		return nil
	}
	return c.lab.Close()
}
