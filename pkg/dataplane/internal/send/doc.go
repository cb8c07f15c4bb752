// SPDX-License-Identifier: Apache-2.0

// Package send is the send direction of a lane, from the TUN queue to the underlay.
//
// A packet passes transmit.go (read, find its peer, enqueue), batch.go and pendingruns.go (build
// runs), and send.go (split, seal and send; with workers for a backlog). reader.go reads ahead of
// a backlog. source.go selects the source port, and spray.go several of them for one flow.
// oversize.go and icmperrors.go handle packets that do not fit or cannot be delivered. queue.go
// keeps trains, and heldruns.go sealed runs, for which a send buffer has no room. slow.go sends
// outside the lanes. flows.go counts flows.
package send
