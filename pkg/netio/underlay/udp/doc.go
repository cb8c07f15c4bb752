// SPDX-License-Identifier: Apache-2.0

// Package udp is the underlay over ordinary UDP sockets. Each lane has one; they
// share a port by SO_REUSEPORT. The sockets use UDP_SEGMENT and UDP_GRO where the kernel supports
// them. A socket filter drops floods of handshake initiations, and a classic BPF program selects
// the lane of a datagram by its source port.
//
// Begin reading with Open in port.go. Lanes send with send.go (runs to messages) and
// sendbatch.go (messages of one system call). They receive with lane.go and
// recvbatch.go. The send buffers are adapted in sendlimit.go. source.go,
// group.go and fragment.go open further sockets. pathlimit.go remembers sizes
// that the host has refused. select.go chooses the lane of a datagram, initiations.go
// filters floods, both with programs of assemble.go. control.go and raw.go are
// the system calls and their control messages.
//
// Not for other programs: it may change without notice.
package udp
