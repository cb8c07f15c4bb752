// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/xsk"
)

// TestStatusSaysWhy names the cause that explains the most.
func TestStatusSaysWhy(t *testing.T) {
	down, targets := LaneStatus{Err: xsk.ErrDown}, [reasons]int{Express: 3, Unresolved: 1, NoNeighbour: 2}
	for want, s := range map[string]Status{
		"": {Lanes: []LaneStatus{{}}, Targets: [reasons]int{Express: 3, Unresolved: 1}},
		"no such device": {
			Err: errors.New("no such device"), Lanes: []LaneStatus{down}, Targets: targets,
		},
		"1 of 2 lanes have no AF_XDP socket: lane 1: the device is down: network is down": {
			Lanes: []LaneStatus{{}, down}, Targets: targets,
		},
		"to 2 of the addresses sent to, the kernel sends: the next hop's link-layer address is not known": {
			Lanes: []LaneStatus{{}}, Targets: targets,
		},
	} {
		if got := s.Why(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	seen := map[string]bool{}
	for r := range Reason(reasons) {
		if text := r.explain(); text == "" || text == "unknown" || seen[text] {
			t.Errorf("%v is explained by %q", r, text)
		} else {
			seen[text] = true
		}
	}
}
