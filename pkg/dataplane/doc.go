// SPDX-License-Identifier: Apache-2.0

// Package dataplane groups the packages that move packets.
//
//   - engine: starts and ends the lanes of a tunnel; each carries trains between a TUN queue and an underlay lane
//   - internal/lane: what both directions of a lane share; internal/send and internal/receive are these, one goroutine each
//   - internal/receive/order: puts the messages of sprayed flows back into order
//   - fqcodel: the queues of a lane: fair between flows, short for each
//   - heavyhitter: a table of the flows with most traffic, for `ropewalk flows`
//   - workpool: workers that seal and open trains for a lane whose flow needs more than one core
//
// Nothing here allocates, locks or reads a clock per packet. Lanes know neither configuration nor handshakes: they call
// engine.SlowPath. Imports protocol and netio. Begin with engine.Engine.
package dataplane
