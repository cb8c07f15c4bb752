// SPDX-License-Identifier: Apache-2.0

// Package proof says of a node's peers only what was seen. It decides which peers to ask and when,
// takes the answers, and derives the state of each peer and the node's conditions. It is pure:
// times are arguments, and actions are returned.
//
// A peer is asked in two ways at once. The engine's probe (uapi.Client.ProbePeers) proves that the
// peer is reachable. A datagram to its tunnel address (reflector.Client) proves that the routes
// lead through the tunnel as well. Begin with Tracker.Step and ConditionsOf.
//
// Not for other programs: it may change without notice.
package proof
