// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// weight is the share of time of a target. Input that a stranger can send counts three times as much as input from the host's own
// kernel or administrator. Targets with another implementation as oracle are slow, and get the most.
func weight(t target) int {
	switch {
	case t.dir == "test/compare", strings.HasSuffix(t.name, "MatchesKernel"):
		return 6
	case strings.HasPrefix(t.dir, "pkg/protocol/") && t.dir != "pkg/protocol/config",
		t.dir == "pkg/dataplane/engine", t.dir == "pkg/tunnel/device", t.dir == "pkg/control/uapi",
		t.dir == "pkg/netio/underlay/udp", t.dir == "pkg/netio/underlay/xdp", t.dir == "pkg/netio/toobig":
		return 3
	}
	return 1
}

// covered is the argument of go test -coverpkg for a target: its package, or the packages that a comparison is about.
func covered(t target) string {
	if t.dir == "test/compare" {
		return "./pkg/tunnel/device,./pkg/dataplane/engine,./pkg/protocol/session,./pkg/control/uapi"
	}
	return "./" + t.dir
}

// unpredictable reports whether a target's input goes through goroutines of another implementation or through the kernel, where an answer or a
// packet may rarely be lost. -once leaves such targets out: a failure there would not be reproducible. Their seeds are tests.
func unpredictable(t target) bool {
	return t.name == "FuzzSameAnswers" || strings.HasSuffix(t.name, "MatchesKernel")
}
