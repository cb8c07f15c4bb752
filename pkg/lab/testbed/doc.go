// SPDX-License-Identifier: Apache-2.0

// Package testbed runs one tunnel between two hosts of this machine and measures
// it. A Lab is two network namespaces, a multi-queue cable between them and a tunnel, served by
// whatever implementation its Daemon starts. A Measure takes one figure in a Lab. `ropewalk bench`
// and the comparison of implementations (test/bench) use it.
//
// Traffic is made by processes of their own (`ropewalk traffic`), so that the measuring process
// shares neither their memory nor their threads. Begin with New.
//
// Not for other programs: it may change without notice.
package testbed
