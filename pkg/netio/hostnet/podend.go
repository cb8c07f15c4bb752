// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net/netip"
	"slices"
)

// IsPodEnd reports whether a device of a kind (Link.Kind) and with these addresses is the host's
// end of a container. A veth or netkit device is one, unless it has the address of a subnet. Then
// the host itself is a container, and the device its uplink.
//
// Some network plugins give the host's ends link-local addresses, or the gateway's address without
// a subnet. An example is the CNI plugin ptp (plugins/main/ptp/ptp.go, setupHostVeth). An uplink
// whose only address has no subnet, as a routed NIC of LXD, is taken for the end of a container.
func IsPodEnd(kind string, addresses []netip.Prefix) bool {
	return (kind == "veth" || kind == "netkit") && !slices.ContainsFunc(addresses, isSubnet)
}

func isSubnet(p netip.Prefix) bool { return !p.IsSingleIP() && !p.Addr().IsLinkLocalUnicast() }
