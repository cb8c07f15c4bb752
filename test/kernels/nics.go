// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// nicQueues is the number of queue pairs of each NIC. The driver virtio_net needs two for each
// processor: one for the stack, and one for XDP transmit.
const nicQueues = 2 * processors

// nics are two virtio NICs of a machine. Their TAP devices are ports of a bridge in a network namespace of the host, because none of
// QEMU's built-in backends has several queues.
type nics struct {
	lab  *netlab.Lab
	host *netlab.Host
}

// newNICs creates the bridge and the TAP devices. Without the privileges for that the error wraps netlab.ErrPrivileges.
func newNICs() (c *nics, err error) {
	lab, err := netlab.New("vm")
	if err != nil {
		return nil, err
	}
	c = &nics{lab: lab}
	if c.host, err = lab.Host("wire"); err == nil {
		err = c.host.Do(addBridge)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("creating NICs: %w", err), lab.Close())
	}
	return c, nil
}

// addBridge creates a TAP device for each NIC and a bridge between them in the calling thread's network namespace.
func addBridge() error {
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
		for _, f := range tap.Fds { // the device is persistent
			_ = f.Close()
		}
		if err := errors.Join(netlink.LinkSetMaster(tap, bridge), netlink.LinkSetUp(tap)); err != nil {
			return fmt.Errorf("adding %s to the bridge: %w", name, err)
		}
	}
	return nil
}

func tapNames() []string { return []string{"nic0", "nic1"} }

// start starts QEMU in the network namespace of the TAP devices, or in the caller's if c is nil.
func (n *nics) start(cmd *exec.Cmd) error {
	if n == nil {
		return cmd.Start()
	}
	return n.host.Do(cmd.Start)
}

// args returns QEMU's arguments. iommu_platform (VIRTIO_F_ACCESS_PLATFORM) is a condition for virtio_net's XDP zero-copy.
func (n *nics) args() (args []string) {
	if n == nil {
		return nil
	}
	for i, name := range tapNames() {
		net := "net" + strconv.Itoa(i)
		args = append(
			args,
			"-netdev", fmt.Sprintf("tap,id=%s,ifname=%s,queues=%d,vhost=off,script=no,downscript=no", net, name, nicQueues),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=02:00:00:00:00:0%d,mq=on,vectors=%d,iommu_platform=on,disable-legacy=on,romfile=",
				net, i+1, 2*nicQueues+2),
		)
	}
	return args
}

// close removes the namespace with the bridge and the TAP devices.
func (n *nics) close() error {
	if n == nil {
		return nil
	}
	return n.lab.Close()
}
