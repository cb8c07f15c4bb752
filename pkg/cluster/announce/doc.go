// SPDX-License-Identifier: Apache-2.0

// Package announce converts what agents tell each other: between
// RopewalkAnnouncements and pkg/cluster/mesh, in both directions. It knows how long others have
// been able to know an announcement (Propagation), and notices a second writer of an object
// (Rival). It does no I/O. Only pkg/cluster/agent imports it. Begin reading in convert.go.
//
// Not for other programs: it may change without notice.
package announce
