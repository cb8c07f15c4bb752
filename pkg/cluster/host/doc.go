// SPDX-License-Identifier: Apache-2.0

// Package host changes the kernel's state of a node in mode mesh: routes, rules, the filter of unencrypted packets, and the tunnel's addresses. It knows
// neither the API nor the tunnel, so that what it has set stays without both. The agent may import it.
//
// Begin reading in network.go. One goroutine at a time uses it; PlaintextDropped may be called at any time.
//
// Not for other programs: it may change without notice.
package host
