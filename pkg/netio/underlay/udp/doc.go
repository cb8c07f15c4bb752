// SPDX-License-Identifier: Apache-2.0

// Package udp is the underlay over ordinary UDP sockets. Each lane has one; they share a port by SO_REUSEPORT. The sockets use UDP_SEGMENT
// and UDP_GRO where the kernel supports them. A socket filter drops floods of handshake initiations, and a classic BPF program
// selects the lane of a datagram by its source port.
//
// Begin reading with Open in port_linux.go.
package udp
