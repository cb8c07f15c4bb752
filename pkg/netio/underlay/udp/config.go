// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"log/slog"

	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
)

// DefaultBuffer is the default size in bytes that is requested for each socket's send and receive buffer.
const DefaultBuffer = 7 << 20

// MaxLanes is the largest number of lanes of one Port.
const MaxLanes = 256

// Config configures a Port.
type Config struct {
	// Port is the UDP port; 0 lets the kernel choose.
	Port uint16
	// Lanes is the number of sockets; 0 means one.
	Lanes int
	// Mark is the SO_MARK of sent packets; 0 for none. Setting it needs CAP_NET_ADMIN.
	Mark uint32
	// ReceiveBuffer and SendBuffer are in bytes per socket; 0 means DefaultBuffer. Without
	// CAP_NET_ADMIN the kernel caps them at net.core.rmem_max and wmem_max. A send buffer begins
	// smaller, and follows the rate of the network device up to SendBuffer, or further if a
	// datagram in fragments needs it. The socket of handshakes and keepalives has a buffer of
	// fixed size (controlSendBuffer).
	ReceiveBuffer int
	SendBuffer    int
	// NoGSO and NoGRO disable UDP_SEGMENT and UDP_GRO even where the kernel supports them.
	NoGSO bool
	NoGRO bool
	// NoIPv6 opens IPv4 sockets instead of dual-stack ones.
	NoIPv6 bool
	// BusyPoll makes Recv keep its CPU while traffic flows (package busypoll).
	BusyPoll bool
	// Fragments permits fragments of sent datagrams; see SetFragments.
	Fragments bool
	// TooBig is called for each ICMP error about a packet too big for a link, also for packets of
	// other programs. Its argument is valid only during the call. Without it, or without
	// CAP_NET_RAW, fragments are permitted whatever Fragments says.
	TooBig func(*toobig.Message)
	// Log gets a warning if the kernel refuses an optional feature; nil for none.
	Log *slog.Logger
	// Sockets, if set, are used instead of new sockets. They must come from one Port with as many lanes, and be bound
	// to Config.Port unless that is 0; Open checks them. The Port owns them after a successful Open.
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
