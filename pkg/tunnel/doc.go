// SPDX-License-Identifier: Apache-2.0

// Package tunnel embeds a WireGuard tunnel in a Go program. A Tunnel carries packets between a TUN device and an underlay port:
// real ones (tun.Open, UDP sockets), or in-memory ones for tests (tun.NewFake, underlay.NewNetwork).
//
// The directory groups everything that makes up one interface:
//
//   - device: peers, handshakes, timers, staged packets, statistics
//   - autounderlay: chooses between UDP and AF_XDP sockets
//   - daemon: the process of ropewalk run, with control socket and in-place upgrade
//
// Packages here know no observer and no command line. Begin with Tunnel, then device.Device.
package tunnel
