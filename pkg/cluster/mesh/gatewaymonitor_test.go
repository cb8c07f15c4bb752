// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"strings"
	"testing"
	"time"
)

func TestSilentGatewayIsUnreachableUntilItRecovers(t *testing.T) {
	type step struct {
		at   int // seconds
		b, c int // bytes received; negative: no such gateway
		want string
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"a new gateway has time to be heard", []step{{0, 0, -1, ""}, {11, 0, -1, ""}, {12, 0, -1, "b"}}},
		{"keepalives", []step{{0, 0, 0, ""}, {9, 32, 0, ""}, {12, 32, 0, "c"}, {20, 32, 0, "c"}, {21, 32, 0, "b c"}}},
		{"traffic returns late", []step{{0, 7, 0, ""}, {12, 7, 1, "b"}, {20, 8, 2, "b"}, {30, 9, 3, "b"}, {40, 10, 4, "b"}, {49, 11, 5, "b"}, {50, 12, 6, ""}}},
		{"silent again meanwhile", []step{{0, 7, -1, ""}, {12, 7, -1, "b"}, {20, 8, -1, "b"}, {32, 8, -1, "b"}, {33, 9, -1, "b"}, {42, 10, -1, "b"}, {52, 11, -1, "b"}, {60, 12, -1, "b"}, {63, 13, -1, ""}}},
		{"the counter restarts", []step{{0, 900, -1, ""}, {11, 0, -1, ""}, {22, 0, -1, ""}, {23, 0, -1, "b"}}},
		{"a removed gateway is forgotten", []step{{0, 0, 0, ""}, {12, 0, 1, "b"}, {13, -1, 2, ""}, {14, 0, 3, ""}, {25, 0, 4, ""}, {26, 0, 5, "b"}}},
	} {
		var m GatewayMonitor
		start := time.Unix(1000, 0)
		for _, s := range c.steps {
			received := map[string]uint64{}
			for name, bytes := range map[string]int{"b": s.b, "c": s.c} {
				if bytes >= 0 {
					received[name] = uint64(bytes)
				}
			}
			got := strings.Join(m.Update(start.Add(time.Duration(s.at)*time.Second), received), " ")
			if got != s.want {
				t.Errorf("%s: after %d s: unreachable %q, want %q", c.name, s.at, got, s.want)
			}
		}
	}
}

// TestUnreachableGatewayStaysSoWhenResumed resumes a monitor whose engine has counted bytes before, and one whose engine is new.
func TestUnreachableGatewayStaysSoWhenResumed(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, bytes := range []uint64{0, 900} {
		var m GatewayMonitor
		if m.Resume(nil) || !m.Resume([]string{"b", "gone"}) || m.Resume([]string{"c"}) {
			t.Error("want that an empty monitor alone resumes")
		}
		for _, at := range []int{0, 11, 12, 40, 60} {
			got := m.Update(start.Add(time.Duration(at)*time.Second), map[string]uint64{"b": bytes, "c": uint64(at)})
			if strings.Join(got, " ") != "b" {
				t.Errorf("%d bytes, after %d s: unreachable %q, want b", bytes, at, got)
			}
		}
	}
}
