// SPDX-License-Identifier: Apache-2.0

// Package idle measures what a tunnel costs that nobody uses: how often the daemon wakes up, and how much memory a peer
// takes. What must not grow is asserted with a generous margin; the figures in docs/idle.md are those of
//
//	go test -count=1 -v ./test/idle -measure 60s
//
// It needs root and /dev/net/tun for the daemon. ROPEWALK_BIN is the binary to measure; it is built from cmd/ropewalk when
// empty.
package idle
