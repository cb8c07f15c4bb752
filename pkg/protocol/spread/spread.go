// SPDX-License-Identifier: Apache-2.0

package spread

import "fmt"

// MaxPorts is the largest number of source ports for flows to one peer.
const MaxPorts = 64

// Ports is an inclusive range of UDP ports. The zero Ports is empty.
type Ports struct{ First, Last uint16 }

// DefaultPorts lie above Linux's default range for ephemeral ports (32768 to 60999), so that the kernel
// assigns none of them to other sockets.
var DefaultPorts = Ports{First: 61000, Last: 61999} //nolint:gochecknoglobals // a constant of a type that Go has no constants of

// Len returns the number of ports.
func (p Ports) Len() int {
	if p.First == 0 || p.Last < p.First {
		return 0
	}
	return int(p.Last) - int(p.First) + 1
}

// All returns the ports in order.
func (p Ports) All() []uint16 {
	all := make([]uint16, p.Len())
	for i := range all {
		all[i] = p.First + uint16(i)
	}
	return all
}

// Contains reports whether port is in the range.
func (p Ports) Contains(port uint16) bool { return p.Len() > 0 && p.First <= port && port <= p.Last }

// String returns "first-last".
func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }
