// SPDX-License-Identifier: Apache-2.0

// Package uapi implements WireGuard's cross-platform configuration protocol
// (https://www.wireguard.com/xplatform/). It has the text of the get and set operations, the Unix
// socket that wg(8) looks for, a server and a client.
//
// ropewalk adds operations and keys that stock tools never send:
//
//   - stats=1: one line of JSON.
//   - flows=1: one line of JSON with the busiest flows, which the daemon counts from the first request to some seconds after the last.
//   - get=1 with lines "public_key=…": only these peers.
//   - probe=1 with lines "public_key=…": sends these peers a message that they answer, and one line of JSON (config.PeerProbe by peer).
//   - log=1: the log level ("level=info"). A line "level=…" in the request changes it.
//   - takeover=1, upgrade=1: the upgrade of a running daemon (handover.go).
//   - set=1 accepts the device keys of config.Table, such as "spread_ports" (61000-61999). Peers also
//     have "post_quantum", "name" and "endpoint_name".
//
// An older daemon refuses requests with keys that it does not know as a whole. So stats=1 lists
// the keys and operations that its daemon has (Features). The answer to get=1 has WireGuard's
// keys only. How a device spreads is in the JSON of stats=1 (config.SpreadReport).
//
// Package daemon serves the socket. Packages quick and doctor and the commands are clients. Start
// reading with Server in serve.go and Client in client.go. Below them are listen.go (the socket's
// file), handover.go (upgrades), and get.go, set.go and loglevel.go (the operations). The syntax
// is in line.go and reply.go. Package uapitest has a fake device for tests.
package uapi
