// SPDX-License-Identifier: Apache-2.0

// Package guard watches what leaves a node of a mesh beside its tunnel. It
// attaches the programs of programs.Guard in front of all others. They act at the tunnel, and at
// tc egress of each device by which packets may leave the node. They see what the routing does
// not: packets that another program redirects from a pod's device, and inner packets of an
// overlay network.
//
// A packet to a pod of another node is counted. In the strict state it is dropped, unless its
// prefix is exempt. In the tunnel, packets are counted by source and never dropped. Programs and maps are pinned in a BPF file system and outlive
// the process. CAP_BPF and CAP_NET_ADMIN suffice.
//
// Begin with Open and Guard.Attach.
//
// Not for other programs: it may change without notice.
package guard
