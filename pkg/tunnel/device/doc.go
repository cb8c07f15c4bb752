// SPDX-License-Identifier: Apache-2.0

// Package device is the control side of one WireGuard interface: configuration,
// peers, handshakes, timers, staged packets, hellos and snapshots. Package engine sends and
// receives the packets of live sessions, and calls this package for the rest. The daemon and the
// embedding API create a Device.
//
// Begin reading in device.go, then peer.go. Device and Peer connect their parts, each with a file of its
// name, with the engine and the port. Packages below tunnel/internal decide. They take time and return
// actions:
//   - admission: handshake messages
//   - hello: hellos
//   - pqexchange: post-quantum exchanges
//   - endpoint: roaming, and names of endpoints
//   - pathmtu: limits of outer packets that are known without probes
//   - sockets: source ports, send groups, selection of receive lanes
//   - pace: rates and turns
//
// Concurrency: any goroutine may call the exported methods. The lock order is Device.mu, Peer.mu, then the locks of the
// helpers and of the engine's slow lane. Lanes never take Peer.mu.
//
// Not for other programs: it may change without notice.
package device
