// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Capabilities are the features that a device reports (netlink family netdev). They depend on the driver, not on
// attached programs.
type Capabilities struct {
	// Native: the driver runs XDP programs and redirects from them.
	Native bool
	// ZeroCopy: the driver supports zero-copy AF_XDP.
	ZeroCopy bool
	// RxFragments: the driver runs XDP programs on packets of several fragments.
	RxFragments bool
	// MaxFragments is the largest number of frames in a packet with ZeroCopy; 1 means no MultiBuffer, 0 unknown.
	MaxFragments int
	// TxChecksum: OffloadChecksum works with ZeroCopy. In copy mode it always does.
	TxChecksum bool
}

// Constants of linux/netdev.h.
const (
	netdevFamily        = "netdev"
	netdevDevGet        = 1
	netdevIfindex       = 1
	netdevXDPFeatures   = 3
	netdevZCMaxSegments = 4
	netdevXSKFeatures   = 6

	xdpBasic    = 1 << 0
	xdpRedirect = 1 << 1
	xdpZeroCopy = 1 << 3
	xdpRxSG     = 1 << 5

	xskTxChecksum = 1 << 1
)

// Probe queries the capabilities of a device, by its index in the network namespace of the calling thread. The error
// satisfies errors.Is(err, errors.ErrUnsupported) before Linux 6.3, and errors.Is(err, ErrGone) for a missing device.
func Probe(ifindex int) (Capabilities, error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w (%w)", errors.ErrUnsupported, err)
	}
	if err != nil {
		return Capabilities{}, fmt.Errorf("probing device %d: %w", ifindex, err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	request.AddRawData(devGetRequest(ifindex))
	messages, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("%w (%w)", ErrGone, err)
	}
	if err != nil {
		return Capabilities{}, fmt.Errorf("probing device %d: %w", ifindex, err)
	}
	if len(messages) != 1 {
		return Capabilities{}, fmt.Errorf("probing device %d: %w", ifindex, errMalformedReply)
	}
	return parseCapabilities(messages[0])
}

// devGetRequest returns a generic netlink header and one attribute. nl.Genlmsg is two bytes long and would be sent
// with two bytes of adjacent memory, which the kernel sometimes rejects.
func devGetRequest(ifindex int) []byte {
	b := []byte{netdevDevGet, 1, 0, 0}
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofNlAttr+4)
	b = binary.NativeEndian.AppendUint16(b, netdevIfindex)
	return binary.NativeEndian.AppendUint32(b, uint32(ifindex))
}

// parseCapabilities parses the reply: a generic netlink header and attributes. nl.ParseRouteAttr panics on a last
// attribute without padding.
func parseCapabilities(message []byte) (c Capabilities, err error) {
	if len(message) < nl.SizeofGenlmsg {
		return c, errMalformedReply
	}
	for rest := message[nl.SizeofGenlmsg:]; len(rest) > 0; {
		if len(rest) < unix.SizeofNlAttr {
			return Capabilities{}, errMalformedReply
		}
		length := int(binary.NativeEndian.Uint16(rest))
		if length < unix.SizeofNlAttr || length > len(rest) {
			return Capabilities{}, errMalformedReply
		}
		c.set(binary.NativeEndian.Uint16(rest[2:]), attributeValue(rest[unix.SizeofNlAttr:length]))
		rest = rest[min(len(rest), (length+3)&^3):]
	}
	return c, nil
}

var errMalformedReply = errors.New("malformed netdev reply from the kernel")

func (c *Capabilities) set(attribute uint16, v uint64) {
	switch attribute {
	case netdevXDPFeatures:
		c.Native = v&(xdpBasic|xdpRedirect) == xdpBasic|xdpRedirect
		c.ZeroCopy = c.Native && v&xdpZeroCopy != 0
		c.RxFragments = v&xdpRxSG != 0
	case netdevZCMaxSegments:
		c.MaxFragments = int(v & 0xffff)
	case netdevXSKFeatures:
		c.TxChecksum = v&xskTxChecksum != 0
	}
}

// attributeValue reads an unsigned attribute of 4 or 8 bytes. It returns zero for any other length.
func attributeValue(b []byte) uint64 {
	switch len(b) {
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	case 8:
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}
