// SPDX-License-Identifier: Apache-2.0

package facts

import "github.com/ropewalk/ropewalk/pkg/hostnet"

// ask fills in what ethtool's ioctls tell, which anybody may ask.
func (n *NIC) ask() {
	n.RSS = answer(hostnet.ReadRSS(n.Name))
	n.Driver = answer(hostnet.Driver(n.Name))
	n.Channels = answer(hostnet.ReadChannels(n.Name))
	n.Rings = answer(hostnet.ReadRings(n.Name))
	n.Coalescing = answer(hostnet.ReadCoalescing(n.Name))
	n.Features = answer(hostnet.ReadFeatures(n.Name))
}
