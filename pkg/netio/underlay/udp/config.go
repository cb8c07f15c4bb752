// SPDX-License-Identifier: Apache-2.0

// Package udp is the underlay over ordinary UDP sockets: one per lane, sharing a port by SO_REUSEPORT, with UDP_SEGMENT
// and UDP_GRO where the kernel has them.
package udp

import "log/slog"

// DefaultBuffer is the size in bytes asked for each socket's send and receive buffer when Config says nothing.
const DefaultBuffer = 7 << 20

// MaxLanes is the largest number of lanes of one Port.
const MaxLanes = 256

// Config says how to open a Port.
type Config struct {
	// Port is the UDP port; 0 lets the kernel choose.
	Port uint16
	// Lanes is the number of sockets; 0 is one.
	Lanes int
	// Mark is the SO_MARK of what is sent; 0 for none. Setting one needs CAP_NET_ADMIN.
	Mark uint32
	// ReceiveBuffer and SendBuffer are in bytes per socket; 0 is DefaultBuffer. Without CAP_NET_ADMIN the kernel caps
	// them at net.core.rmem_max and wmem_max.
	ReceiveBuffer int
	SendBuffer    int
	// NoGSO and NoGRO do without UDP_SEGMENT and UDP_GRO even where the kernel has them.
	NoGSO bool
	NoGRO bool
	// NoIPv6 opens IPv4 sockets.
	NoIPv6 bool
	// BusyPoll has Recv hold its processor while traffic flows (package linger).
	BusyPoll bool
	// Log gets a line if the kernel refuses what a port can do without; nil for none.
	Log *slog.Logger
	// Sockets, if set, are gone on with instead of opening others. They must be those of one Port, of as many lanes, bound to
	// Config.Port unless that is 0; Open looks at them. They are the Port's once it is open.
	Sockets *Sockets
}

// complete returns c with its defaults filled in.
func (c Config) complete() Config {
	c.Lanes = max(c.Lanes, 1)
	if c.ReceiveBuffer == 0 {
		c.ReceiveBuffer = DefaultBuffer
	}
	if c.SendBuffer == 0 {
		c.SendBuffer = DefaultBuffer
	}
	return c
}
