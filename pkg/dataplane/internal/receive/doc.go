// SPDX-License-Identifier: Apache-2.0

// Package receive is the receive direction of a lane, from the underlay to the TUN queue.
//
// A packet passes receive.go (receive, open) and deliver.go (check, write). With a backlog it waits in queue.go, and workers receive
// (receiveahead.go) and open (openahead.go) for the lane. flows.go counts flows. Package order keeps messages of sprayed flows until their turn
// has come: other messages do not pass it.
package receive
