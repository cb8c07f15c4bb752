// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Towards returns the link that packets with that mark to a peer leave by; of a VLAN, the device below it, which has the queues.
// Errors are ErrNoLink if it goes away meanwhile, or the kernel's when there is no route.
func Towards(peer netip.Addr, mark uint32) (Link, error) {
	index, err := linkTowards(netip.Addr{}, peer, mark)
	for depth := 0; err == nil && depth < rssDepth; depth++ {
		var l netlink.Link
		if l, err = Dump(func() (netlink.Link, error) { return netlink.LinkByIndex(index) }); err != nil {
			break
		}
		a := l.Attrs()
		if l.Type() != "vlan" || a.ParentIndex == 0 || a.NetNsID >= 0 {
			return linkOf(l), nil
		}
		index = a.ParentIndex
	}
	if err == nil {
		err = ErrNoLink
	}
	return Link{}, fmt.Errorf("finding the device towards %s: %w", peer, err)
}

// driverInfoLen is the size of struct ethtool_drvinfo, in which the driver's name follows the command.
const driverInfoLen, driverNameLen = 196, 32

// Driver returns the name of a device's driver, as `ethtool -i` does. Errors are the kernel's: EOPNOTSUPP for one that tells none,
// ENODEV.
func Driver(device string) (string, error) {
	call, done, err := openEthtool(device)
	if err != nil {
		return "", fmt.Errorf("asking for the driver of %s: %w", device, err)
	}
	defer done()
	request := make([]byte, driverInfoLen)
	binary.NativeEndian.PutUint32(request, unix.ETHTOOL_GDRVINFO)
	if err := call(request); err != nil {
		return "", fmt.Errorf("asking for the driver of %s: %w", device, err)
	}
	name, _, _ := bytes.Cut(request[4:4+driverNameLen], []byte{0})
	return string(name), nil
}
