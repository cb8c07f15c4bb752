// SPDX-License-Identifier: Apache-2.0

// Package daemon assembles a tunnel that runs in this process. Its parts are the TUN device with
// its steering program, the worker pool, the device and the UDP port. Others are the control
// socket, and the watchers of routes, links and clock. It also upgrades a running tunnel in place:
// the tunnel moves to another process.
//
// The command `ropewalk run` and the Kubernetes agent call it. Start reading with Open in
// daemon.go. Calls run downwards: daemon.go (the life of a Daemon), tunnel.go (assembling or
// restoring a tunnel), then one file for each part. These are steer.go, workers.go, ports.go,
// portplan.go and clock.go.
//
// Read about upgrades in this order:
//
//   - predecessor.go: start the successor, stop the tunnel and send it, or restart it on failure.
//   - successor.go: receive the tunnel and start it.
//   - package handover: the messages between the two processes, and the format of the state.
//
// Not for other programs: it may change without notice.
package daemon
