// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Capabilities are the features that a device reports (netlink family netdev). They depend on the driver, not on
// attached programs.
type Capabilities struct {
	// Native: the driver runs XDP programs and redirects from them.
	Native bool
	// ZeroCopy: the driver supports zero-copy AF_XDP.
	ZeroCopy bool
	// TxChecksum: OffloadChecksum works with ZeroCopy. In copy mode it always does.
	TxChecksum bool
}

// Constants of linux/netdev.h.
const (
	netdevFamily      = "netdev"
	netdevVersion     = 1
	netdevDevGet      = 1
	netdevIfindex     = 1
	netdevXDPFeatures = 3
	netdevXSKFeatures = 6

	xdpBasic    = 1 << 0
	xdpRedirect = 1 << 1
	xdpZeroCopy = 1 << 3

	xskTxChecksum = 1 << 1
)

// Probe queries the capabilities of a device, by its index in the network namespace of the calling thread. The error
// satisfies errors.Is(err, errors.ErrUnsupported) before Linux 6.3, and errors.Is(err, ErrGone) for a missing device.
func Probe(ifindex int) (Capabilities, error) {
	messages, err := requestDevice(ifindex)
	if err != nil {
		return Capabilities{}, fmt.Errorf("probing device index %d: %w", ifindex, err)
	}
	if len(messages) != 1 {
		return Capabilities{}, fmt.Errorf("probing device index %d: got %d netdev replies, want 1", ifindex, len(messages))
	}
	return parseCapabilities(messages[0].Data)
}

func requestDevice(ifindex int) ([]genetlink.Message, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	family, err := conn.GetFamily(netdevFamily)
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w (%w)", errors.ErrUnsupported, err)
	}
	if err != nil {
		return nil, err
	}
	request := netlink.NewAttributeEncoder()
	request.Uint32(netdevIfindex, uint32(ifindex))
	data, err := request.Encode()
	if err != nil {
		return nil, err
	}
	header := genetlink.Header{Command: netdevDevGet, Version: netdevVersion}
	messages, err := conn.Execute(genetlink.Message{Header: header, Data: data}, family.ID, netlink.Request|netlink.Acknowledge)
	if errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("%w (%w)", ErrGone, err)
	}
	return messages, err
}

// parseCapabilities parses the attributes of a reply.
func parseCapabilities(attributes []byte) (c Capabilities, err error) {
	d, err := netlink.NewAttributeDecoder(attributes)
	if err == nil {
		for d.Next() {
			c.set(d)
		}
		err = d.Err()
	}
	if err != nil {
		return Capabilities{}, fmt.Errorf("malformed netdev reply: %w", err)
	}
	return c, nil
}

func (c *Capabilities) set(d *netlink.AttributeDecoder) {
	switch d.Type() {
	case netdevXDPFeatures:
		v := d.Uint64()
		c.Native = v&(xdpBasic|xdpRedirect) == xdpBasic|xdpRedirect
		c.ZeroCopy = c.Native && v&xdpZeroCopy != 0
	case netdevXSKFeatures:
		c.TxChecksum = d.Uint64()&xskTxChecksum != 0
	}
}
