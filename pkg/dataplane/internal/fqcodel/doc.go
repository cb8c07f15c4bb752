// SPDX-License-Identifier: Apache-2.0

// Package fqcodel is a queue in memory that shares a bottleneck fairly between flows (FQ-CoDel,
// RFC 8290). It keeps the standing queue of each flow short (CoDel, RFC 8289). Lanes put the
// trains in it that they have received and not opened yet.
//
// Elements are trains of up to 64 packets, so three things differ from the RFCs:
//
//   - A congestion signal concerns one packet of an element. Otherwise a sender would see a burst of 45 losses where a router drops one
//     packet. An element that keeps packets is delivered, as Linux delivers a packet that it marks.
//   - The limit is in bytes as well as in elements.
//   - At the limit the caller removes one element at a time, and accounts for it.
//
// The package reads no clock: callers pass the time. Its behaviour depends on nothing but the calls. Start reading at Queue.
package fqcodel
