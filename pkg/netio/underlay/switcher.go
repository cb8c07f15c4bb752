// SPDX-License-Identifier: Apache-2.0

package underlay

import "github.com/ropewalk/ropewalk/pkg/protocol/config"

// Switcher is a Port with more than one path for data messages. Any goroutine may call its methods.
type Switcher interface {
	// SetMode sets the wanted mode, or makes the choice of the present one again. It returns at once; the path changes soon after. Packets in flight at that moment
	// may be lost, or reordered if their lane changes. Sessions, sources and the lane selection stay.
	SetMode(mode config.UnderlayMode)
	// SetPeers is called once, when all sessions exist that peers may know. UDP carries everything until then.
	SetPeers(peers Peers)
	// EndpointAdded is called when a peer has a new endpoint. It returns at once.
	EndpointAdded(endpoint config.Endpoint)
	// Report returns the present path, and the reason for it.
	Report() config.UnderlayReport
}
