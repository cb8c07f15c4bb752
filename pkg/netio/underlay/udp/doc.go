// SPDX-License-Identifier: Apache-2.0

// Package udp is the underlay over ordinary UDP sockets. Each lane has one; they share a port by SO_REUSEPORT. The sockets use UDP_SEGMENT
// and UDP_GRO where the kernel supports them. A socket filter drops floods of handshake initiations, and a classic BPF program
// selects the lane of a datagram by its source port.
//
// Begin reading with Open in port_linux.go. Lanes send with send_linux.go (runs to messages) and
// sendbatch_linux.go (messages of one system call). They receive with lane_linux.go and
// recvbatch_linux.go. The send buffers are adapted in sendlimit_linux.go. source_linux.go,
// group_linux.go and fragment_linux.go open further sockets. pathlimit_linux.go remembers sizes
// that the host has refused. select_linux.go chooses the lane of a datagram, initiations_linux.go
// filters floods, both with programs of assemble_linux.go. control_linux.go and raw_linux.go are
// the system calls and their control messages.
package udp
