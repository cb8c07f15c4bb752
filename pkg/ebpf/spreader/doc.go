// SPDX-License-Identifier: Apache-2.0

// Package spreader spreads and gathers the packets of a WireGuard that ropewalk does not run,
// such as the kernel's. It attaches the programs of package programs to the device through which
// the outer packets leave. It configures their maps with the tunnel's port, its peers and the
// source ports.
//
// Everything is pinned below ropewalk/spread in a BPF file system, by network namespace and device. There is no other
// record: Status and Detach need nothing else, and a new version replaces the programs in place.
//
// Both ends of a tunnel should be attached, with the same range of ports. If the other end does not gather, the tunnel
// works, but the endpoint that it sees changes with each message. A tunnel through a NAT must not be spread: the NAT drops
// packets from source ports that it has not seen.
//
// Begin with Host and Config.
package spreader
