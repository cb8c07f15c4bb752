// SPDX-License-Identifier: Apache-2.0

// Package uapi implements WireGuard's cross-platform configuration protocol (https://www.wireguard.com/xplatform/): the
// text of its get and set operations, the Unix socket that wg(8) looks for, a server and a client.
//
// ropewalk adds operations and keys that stock tools never send:
//
//   - stats=1: one line of JSON.
//   - flows=1: one line of JSON with the busiest flows, which the daemon counts from the first request to some seconds after the last.
//   - probe=1, with a line "public_key=…": sends that peer a message that it answers, and one line of JSON (config.PeerProbe).
//   - log=1: the log level ("level=info"). A line "level=…" in the request changes it.
//   - takeover=1, upgrade=1: the upgrade of a running daemon (handover.go).
//   - set=1 accepts the device keys "spread" (auto, off or on), "spread_ports" (61000-61999), "spray" (off, auto or 4),
//     "underlay" (auto, udp or xdp), and "outer_fragments" (off or on).
//
// The answer to get=1 has WireGuard's keys only. How a device spreads is in the JSON of stats=1 (config.SpreadReport).
//
// Package daemon serves the socket. Packages quick and doctor and the commands are clients. Start reading with Server in serve.go and
// Client in client.go. Below them are listen.go (the socket's file), handover.go (upgrades), get.go, set.go and loglevel.go (the
// operations), and line.go and reply.go (the syntax). Package uapitest has a fake device for tests.
package uapi
