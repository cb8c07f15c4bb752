// SPDX-License-Identifier: Apache-2.0

// Package bench measures tunnels. A Lab is two hosts (network namespaces), a multi-queue cable between them and one
// tunnel, served by whatever implementation its Daemon starts; a Measure is one figure taken in a Lab. Run measures
// a machine: the rates of its cores, its TUN and its sockets, and a Verdict on the limiting factor of the tunnel.
//
// Traffic is made by processes of their own (`ropewalk traffic`), so that neither their memory nor their threads are
// shared with what measures.
package bench
