// SPDX-License-Identifier: Apache-2.0

// Package offload splits and merges trains of inner packets for a TUN device with offloads.
//
// Train splits one TSO or USO super-packet from the kernel into packets; Merger merges packets
// into such super-packets. The package is pure: bytes in, bytes out, no I/O. It follows Linux's
// tcp_gso_segment, __udp_gso_segment, tcp_gro_receive and udp_gro_receive. So both ends of a
// tunnel see the same packets as with a NIC's offloads. Start reading at Train.Parse and
// Merger.Add.
//
// Not for other programs: it may change without notice.
package offload
