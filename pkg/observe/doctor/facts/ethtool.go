// SPDX-License-Identifier: Apache-2.0

package facts

import "github.com/ropewalk/ropewalk/pkg/netio/hostnet"

// readEthtool reads the settings of ethtool's ioctls, which need no privilege.
func (n *NIC) readEthtool() {
	n.RSS = result(hostnet.ReadRSS(n.Name))
	n.Driver = result(hostnet.Driver(n.Name))
	n.Channels = result(hostnet.ReadChannels(n.Name))
	n.Rings = result(hostnet.ReadRings(n.Name))
	n.Coalescing = result(hostnet.ReadCoalescing(n.Name))
	n.Features = result(hostnet.ReadFeatures(n.Name))
}
