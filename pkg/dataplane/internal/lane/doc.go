// SPDX-License-Identifier: Apache-2.0

// Package lane has the parts that the two directions of a lane share.
//
// Begin with lane.go and peer.go, the lane and the peers that it serves. route.go caches the last
// route, and spread.go selects the source ports of a peer. buffers.go, budget.go and memory.go
// hold, share out and give back memory. clock.go is the time. stats.go, portcounts.go and
// flows.go count. progress.go says whether a loop gets on, and workload.go what kind of traffic
// it carries.
package lane
