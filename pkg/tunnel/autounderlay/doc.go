// SPDX-License-Identifier: Apache-2.0

// Package autounderlay is the underlay that is the better one for the device in front of it: UDP sockets, with AF_XDP beside them where
// that pays. It chooses, and goes on choosing while the network or the configuration changes; packages udp and xdp do the work.
package autounderlay
