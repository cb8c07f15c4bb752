// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"net"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// device is a network device of this namespace.
type device struct {
	name, kind string // kind is IFLA_INFO_KIND, "device" for a NIC
	index      int
	loopback   bool
	ethernet   bool           // whether its packets begin with an Ethernet header
	addresses  []netip.Prefix // with the length of their subnet
}

func listDevices() ([]device, error) {
	links, addresses, err := hostnet.LinkAddresses()
	if err != nil {
		return nil, err
	}
	all := make([]device, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		all = append(all, device{
			name: a.Name, kind: l.Type(), index: a.Index, addresses: addresses[a.Index],
			loopback: a.Flags&net.FlagLoopback != 0, ethernet: a.EncapType == "ether",
		})
	}
	return all, nil
}

// leavesNode reports whether packets may leave the node by the device. Packets that pass several
// such devices, such as a VXLAN device, a bond and its port, are counted at each. Packets of a
// bridge leave by its ports.
func (d device) leavesNode() bool {
	switch d.kind {
	case "bridge", "dummy", "ifb", "nlmon":
		return false
	}
	return !d.loopback && !hostnet.IsPodEnd(d.kind, d.addresses)
}
