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
	// Configure applies the whole change or nothing. An error that wraps an *Error or a syscall.Errno determines the
	// errno that the client sees. Any other error is reported as errno 55 (errnoUnknown), as by wireguard-go.
	Configure(config.Device) error
	// Stats returns a value for json.Marshal.
	Stats() any
}

// Limits of a server. A client that exceeds one is disconnected, after an error reply where one is still possible.
const (
	maxLine      = 4096             // bytes in one line; the longest legitimate one has under 200
	maxRequest   = 64 << 20         // bytes in one request: over a million allowed IPs
	maxConns     = 64               // clients at once; a new one replaces the client that has kept the daemon waiting longest
	firstTimeout = 5 * time.Second  // from connecting to the first byte, so that idle clients do not block others for long
	idleTimeout  = 60 * time.Second // from the first byte to the end of the first request, and from the end of one request to the end of the next
	replyTimeout = 30 * time.Second // for a client to read its answer
	// lastReplyTimeout is replyTimeout once the Server ends.
	lastReplyTimeout = 5 * time.Second
)

// How a server handles its own shortages and failed requests.
const (
	largeRequest       = 1 << 20                // bytes of a request or answer; after a failed one free memory is returned to the kernel at once, after others later
	freeDelay          = 10 * time.Second       // until then: a forced collection costs some ms, and status may be read each second
	acceptPause        = 100 * time.Millisecond // between two attempts to accept a client while descriptors or memory are exhausted
	failureLogs        = 16                     // messages about failed requests, then one every failureLogInterval
	failureLogInterval = 10 * time.Second
)

// Limits of a Client.
const (
	maxReply       = 512 << 20        // bytes in one answer
	requestTimeout = 60 * time.Second // for a daemon to answer
)

// First lines of requests, which name the operation. A request ends with an empty line.
const (
	opGet   = "get=1"   // the configuration, in wg's format
	opSet   = "set=1"   // changes of the configuration, in wg's format
	opStats = "stats=1" // Handler.Stats as JSON
	opLog   = "log=1"   // the log level, or a change of it
	opFlows = "flows=1" // the busiest inner flows, as JSON
	opProbe = "probe=1" // a test of the path to a peer

	opHandover = "takeover=1" // a new daemon takes the tunnel over; other releases use this value, so it stays
	opUpgrade  = "upgrade=1"  // the daemon starts a new one, which takes the tunnel over
)

// keyReason is the key of the text of an error, in the answer of an upgrade.
const keyReason = "reason"

// Peer keys that only ropewalk has. A device's are in config.Table.
const (
	keyName         = "name"
	keyPostQuantum  = "post_quantum"
	keyEndpointName = "endpoint_name" // must follow endpoint in a request: a new endpoint clears the name
)

// Features returns what this version understands beyond WireGuard's protocol: keys of set=1, keys of other operations, and operations.
// A value that a key has got in a later release follows the key.
// Stats of a daemon have them, for clients of another version.
func Features() []string {
	features := []string{"set." + keyName, "set." + keyEndpointName, "set." + keyPostQuantum + "." + config.PostQuantumForget, "get.public_key", "probe.public_key", "flows", "log"}
	for _, s := range config.Table() { // also keyPostQuantum
		features = append(features, "set."+s.Key())
	}
	return features
}
