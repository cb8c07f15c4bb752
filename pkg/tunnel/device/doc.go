// SPDX-License-Identifier: Apache-2.0

// Package device is the control side of one WireGuard interface: configuration, peers, handshakes, timers, staged packets,
// hellos and snapshots. Package engine sends and receives the packets of live sessions, and calls this package for the rest.
// The daemon and the embedding API create a Device.
//
// Start with device.go, then peer.go. Calls run downwards in this order:
//
//   - device.go, status.go, handover.go with state.go, configure.go: the entry points of a Device
//   - port.go, underlaymode.go: link events and the UDP port; worker.go: the goroutines behind the lanes
//   - peer.go: the slow path of one peer, as lanes and timers call it; peer_handover.go: its saved state
//   - handshake.go; session.go: key pairs; staging.go: packets that wait for a session
//   - hello.go, hello_pending.go: the capability exchange; hello_state.go: its state machine
//   - spread.go, sources.go, selection.go: source ports and receive lanes; path.go: endpoint and guard
//   - timer.go, queue.go, counters.go, ratelimit.go: helpers
//
// Concurrency: any goroutine may call the exported methods. The lock order is Device.mu, Peer.mu, then the locks of the
// helpers and of the engine's slow lane. Lanes take Peer.mu only for packets without a session.
package device
