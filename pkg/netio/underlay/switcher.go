// SPDX-License-Identifier: Apache-2.0

package underlay

import "github.com/ropewalk/ropewalk/pkg/protocol/config"

// Switcher is a Port with more than one path for data messages. Any goroutine may call its methods.
type Switcher interface {
	// SetMode sets the wanted mode. With the present mode, the port only chooses its path again. It
	// returns at once, and the path changes soon after. Packets in flight at that moment may be lost,
	// or reordered if their lane changes. SetMode does not change sessions, source ports or the
	// selection of receive lanes.
	SetMode(mode config.UnderlayMode)
	// SetPeers is called once for each new port, after sessions were restored. Until then, UDP
	// carries everything.
	SetPeers(peers Peers)
	// EndpointAdded is called when a peer has a new endpoint: a port that has found no network device
	// looks again. It returns at once.
	EndpointAdded(endpoint config.Endpoint)
	// Report returns the present path, and the reason for it.
	Report() config.UnderlayReport
}
