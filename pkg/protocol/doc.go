// SPDX-License-Identifier: Apache-2.0

// Package protocol groups the packages that do no I/O: IP and WireGuard as bytes, values and state machines.
//
//   - packet, offload: IP, TCP and UDP headers, checksums, the flow hash; splitting and merging GSO/GRO trains
//   - wire, noise, session, chachapoly: message layouts, the handshake, key pairs with replay window, the AEAD for whole trains
//   - peer: timers, allowed IPs and the handshake rate limiter; spread: selection of the outer source port
//   - config: the values with which an interface is configured and reported; drop: the closed list of drop reasons
//
// Packages here import only each other, and neither the net package nor system calls. Begin with wire and session.
package protocol
