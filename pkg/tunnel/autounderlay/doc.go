// SPDX-License-Identifier: Apache-2.0

// Package autounderlay is the underlay that chooses between UDP sockets and AF_XDP, which runs beside them where it is faster. It
// repeats the choice while the network or the configuration changes. Packages udp and xdp do the work.
//
// Package daemon uses it. Begin reading with Port in port_linux.go; choose.go holds the decision.
package autounderlay
