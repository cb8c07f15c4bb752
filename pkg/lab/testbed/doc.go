// SPDX-License-Identifier: Apache-2.0

// Package testbed runs one tunnel between two hosts of this machine and measures it. A Lab is two network namespaces, a
// multi-queue cable between them and a tunnel, served by whatever implementation its Daemon starts. A Measure takes one figure
// in a Lab. `ropewalk bench` and the comparison of implementations (test/bench) use it.
//
// Traffic is made by processes of their own (`ropewalk traffic`), so that neither their memory nor their threads are
// shared with what measures. Begin with New.
package testbed
