// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Handler is the device behind a socket. Its methods may be called by several connections at once.
type Handler interface {
	// Status returns the current state of the device.
	Status() config.Status
	// Configure applies the whole change or nothing. An error that holds an *Error or a syscall.Errno decides the errno
	// the client sees; any other error is reported as errno 55, as wireguard-go does.
	Configure(config.Device) error
	// Stats returns a value for json.Marshal.
	Stats() any
}

// Limits of one socket. A client that exceeds one is disconnected, after an error reply where one is still possible.
const (
	maxLine            = 4096                   // bytes in one line; the longest legitimate one has under 200
	maxRequest         = 64 << 20               // bytes in one request: over a million allowed IPs
	largeRequest       = 1 << 20                // bytes of a failed request from which on its memory is returned to the kernel at once
	maxReply           = 512 << 20              // bytes a client accepts for one answer
	maxConns           = 64                     // clients at once; a new one replaces the one that has kept the daemon waiting longest for its request
	firstTimeout       = 5 * time.Second        // from connecting to the first byte, so that idle clients do not block others for long
	idleTimeout        = 60 * time.Second       // from the first byte to the end of a request, and from there to the end of the next
	replyTimeout       = 30 * time.Second       // for a client to read its answer
	acceptPause        = 100 * time.Millisecond // before the next try when descriptors or memory ran out
	failureLogs        = 16                     // messages about failed requests, then one each failureLogInterval
	failureLogInterval = 10 * time.Second
	requestTimeout     = 60 * time.Second // for a daemon to answer Client
)

// First lines of the operations. An operation ends with an empty line.
const (
	opGet   = "get=1"
	opSet   = "set=1"
	opStats = "stats=1"
	opLog   = "log=1"
	opFlows = "flows=1"
	opProbe = "probe=1"

	opHandover = "takeover=1" // the value is part of the handover protocol: daemons of other releases use it
	opUpgrade  = "upgrade=1"
)

// Device keys that only ropewalk has.
const (
	keySpread      = "spread"
	keySpreadPorts = "spread_ports"
	keyUnderlay    = "underlay"
	keyReceiveCPUs = "rx_cpus"
	keyFragments   = "outer_fragments"
)

// Peer keys that only ropewalk has.
const (
	keyName         = "name"
	keyEndpointName = "endpoint_name" // follows endpoint, which removes it
)
