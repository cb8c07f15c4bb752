// SPDX-License-Identifier: Apache-2.0

// Package autounderlay is an underlay that selects between UDP sockets alone and
// UDP sockets with AF_XDP. It selects AF_XDP where that is configured or was measured to be better,
// and selects again when the network or the configuration changes. Packages udp and xdp carry the
// datagrams.
//
// Package daemon uses it. Begin reading with Port in port.go; choose.go holds the decision and its facts.
//
// Not for other programs: it may change without notice.
package autounderlay
