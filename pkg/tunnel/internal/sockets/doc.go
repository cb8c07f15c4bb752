// SPDX-License-Identifier: Apache-2.0

// Package sockets keeps the state of a device on its present UDP port beyond one socket per lane.
// This is source ports to spread over, send groups, the selection of receive lanes, and the drops
// of closed ports. A zero value works without a port. All is safe for concurrent use.
package sockets

import "errors"

// The reasons why a port is not used, for people.
var (
	ErrSpreadOff = errors.New("spreading is off")
	ErrDown      = errors.New("the interface is down")
	ErrNoPorts   = errors.New("none of the spread ports is free on this host")
)
