// SPDX-License-Identifier: Apache-2.0

package underlay

import "github.com/ropewalk/ropewalk/pkg/protocol/config"

// Switcher is a Port with more than one way for data messages. Its methods may be called by any goroutine.
type Switcher interface {
	// SetMode says which way is wanted. It returns at once, and the way changes soon after; what is under way at that moment
	// may be lost or, where lanes differ, overtaken, and sessions, sources and the selection of lanes stay.
	SetMode(mode config.UnderlayMode)
	// SetReceiveCPUs says over which processors the kernel is to spread its share of receiving where UDP sockets have the data
	// messages. It returns at once, too; flows that change processors may have some of what is under way overtaken.
	SetReceiveCPUs(cpus config.ReceiveCPUs)
	// Report says which way it is, and why.
	Report() config.UnderlayReport
}
