// SPDX-License-Identifier: Apache-2.0

package underlay

import "github.com/ropewalk/ropewalk/pkg/protocol/config"

// Switcher is a Port with more than one path for data messages. Any goroutine may call its methods.
type Switcher interface {
	// SetMode sets the wanted mode. It returns at once; the path changes soon after. Packets in flight at that moment
	// may be lost, or reordered if their lane changes. Sessions, sources and the lane selection stay.
	SetMode(mode config.UnderlayMode)
	// Report returns the present path, and the reason for it.
	Report() config.UnderlayReport
}
