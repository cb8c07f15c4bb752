// SPDX-License-Identifier: Apache-2.0

// Package idle measures the cost of an idle tunnel: how often the daemon wakes up, and how much memory a peer takes. The tests
// assert limits with a generous margin. The figures in docs/dev/idle.md are the output of
//
//	go test -count=1 -v ./test/idle -measure 60s
//
// The daemon needs root and /dev/net/tun. ROPEWALK_BIN is the binary to measure. If it is empty, the tests build cmd/ropewalk.
package idle
