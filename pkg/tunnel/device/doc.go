// SPDX-License-Identifier: Apache-2.0

// Package device, ropewalk's own, is the control side of one WireGuard interface: configuration,
// peers, handshakes, timers, staged packets, hellos and snapshots. Package engine sends and
// receives the packets of live sessions, and calls this package for the rest. The daemon and the
// embedding API create a Device.
//
// Begin reading in device.go, then peer.go. Calls run down this list of files, never up (TestCallsRunDownTheFiles):
//   - entry points: device, status, flows, echo, handover, configure
//   - the port and its workers: port, worker, triage, stall
//   - one peer, as lanes and timers call it: peer, peer_handover
//   - handshakes and sessions: recall, renew, handshake, endpointname, refused, session, staging
//   - hellos: hello, timer, hello_pending, hello_state
//   - post-quantum exchanges, whose decisions are in pqexchange: postquantum
//   - probes of source ports and of the path MTU: probe
//   - source ports, receive lanes and endpoints: scope, path, spread, sendgroup, sources, selection
//   - the path MTU, and what probes have found: pathmtu, trains, pathlimit, probing
//   - helpers: loop, sourceaddr, tunnelup, underlaymode, peername, knownendpoints, cookielimit, recentsenders, queue, counters, changes, state
//
// Concurrency: any goroutine may call the exported methods. The lock order is Device.mu, Peer.mu, then the locks of the
// helpers and of the engine's slow lane. Lanes never take Peer.mu.
package device
