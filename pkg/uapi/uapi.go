// SPDX-License-Identifier: Apache-2.0

// Package uapi speaks WireGuard's cross-platform configuration protocol (https://www.wireguard.com/xplatform/): the
// texts of its get and set operations, the Unix socket that wg(8) looks for, its server and its client. What stock
// tools never send is added: the operation "stats=1", which answers with one line of JSON, "log=1", which answers with
// the log level ("level=info") after setting it where the request has such a line, and in a set operation's body the
// device keys "spread" (auto, off or on), "spread_ports" (61000-61999), "underlay" (auto, udp or xdp) and "rx_cpus" (off,
// auto or 0-3,8). What get answers is WireGuard's alone, so how a device spreads, and by what way, is in the JSON
// (config.SpreadReport). "takeover=1" and "upgrade=1" are for a daemon and its successor.
package uapi

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
)

// Handler is the device behind a socket. Its methods may be called by several connections at once.
type Handler interface {
	// Status returns what the device is now.
	Status() config.Status
	// Configure applies the whole change or nothing. An error that holds an *Error or a syscall.Errno decides the errno
	// the client sees; any other error is reported as errno 55, as wireguard-go does.
	Configure(config.Device) error
	// Stats returns a value for json.Marshal.
	Stats() any
}

// Limits of one socket. A client that goes beyond one gets an error reply, where one is still possible, and is
// disconnected.
const (
	maxLine        = 4096                   // bytes in one line; the longest legitimate one has under 200
	maxRequest     = 64 << 20               // bytes in one request: over a million allowed IPs
	maxReply       = 512 << 20              // bytes a client accepts for one answer
	maxConns       = 64                     // clients served at once; others wait in the listen queue
	firstTimeout   = 5 * time.Second        // from connecting to the first byte, so that silent clients do not keep others waiting
	idleTimeout    = 60 * time.Second       // from then to the end of that request, and from there to the end of the next
	replyTimeout   = 30 * time.Second       // for a client to take its answer
	acceptPause    = 100 * time.Millisecond // before the next try when descriptors or memory ran out
	requestTimeout = 60 * time.Second       // for a daemon to answer Client
)

// First lines of the operations. An operation ends with an empty line.
const (
	opGet   = "get=1"
	opSet   = "set=1"
	opStats = "stats=1"
	opLog   = "log=1"

	opTakeOver = "takeover=1"
	opUpgrade  = "upgrade=1"
)

// Device keys of ropewalk's own.
const (
	keySpread      = "spread"
	keySpreadPorts = "spread_ports"
	keyUnderlay    = "underlay"
	keyReceiveCPUs = "rx_cpus"
)
