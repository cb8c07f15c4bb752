// SPDX-License-Identifier: Apache-2.0

// Package fqcodel is a packet queue in memory that shares a bottleneck fairly between flows (RFC 8290) and keeps each flow's
// standing queue short (CoDel, RFC 8289). Lanes put the trains in it that they have received and not opened yet.
//
// Two things differ from the RFCs, because elements are trains of up to 64 packets:
//
//   - A congestion signal concerns one packet. The user of the queue marks or drops one packet of the element, so that a sender sees one
//     signal where a router would give one, and not a burst of 45 losses.
//   - The limit is in bytes as well as in elements.
//
// It knows no clock: callers pass the time. A Queue belongs to one goroutine and does not allocate after New. Start reading at Queue.
package fqcodel
