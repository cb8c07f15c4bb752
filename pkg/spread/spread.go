// SPDX-License-Identifier: Apache-2.0

// Package spread decides which outer source port an inner flow takes, so that the receiver's NIC spreads a tunnel over
// its queues while no flow is reordered: the flow table and the loads (Flows, Loads), which the engine uses as they are
// and of which bpf/spread.bpf.c is the twin; and, on the receiver's side, the plan of ports that land evenly on its
// queues (RSS, Plan). It is pure: time is passed in, nothing touches the operating system.
package spread

import "fmt"

// MaxPorts is the largest number of source ports that flows to one peer are spread over.
const MaxPorts = 64

// Ports is a range of UDP ports, both ends included. The zero Ports is empty.
type Ports struct{ First, Last uint16 }

// DefaultPorts lie above Linux's default range for ephemeral ports (32768 to 60999), so that the kernel gives none of
// them to anybody by chance.
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

// Contains tells whether port is in the range.
func (p Ports) Contains(port uint16) bool { return p.Len() > 0 && p.First <= port && port <= p.Last }

// Overlaps tells whether the ranges have a port in common.
func (p Ports) Overlaps(o Ports) bool {
	return p.Len() > 0 && o.Len() > 0 && p.First <= o.Last && o.First <= p.Last
}

// String returns "first-last".
func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }
