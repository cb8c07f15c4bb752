// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"strings"
	"testing"
	"time"
)

// monitorTest updates a monitor each second, with what was last received.
type monitorTest struct {
	GatewayMonitor
	at   int // seconds
	last map[string]uint64
}

func (m *monitorTest) update(at int, received map[string]uint64) (unreachable string) {
	for m.at++; m.at < at; m.at++ {
		m.Update(time.Unix(int64(m.at), 0), m.last)
	}
	m.at, m.last = at, received
	return strings.Join(m.Update(time.Unix(int64(at), 0), received), " ")
}

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
		var m monitorTest
		for _, s := range c.steps {
			received := map[string]uint64{}
			for name, bytes := range map[string]int{"b": s.b, "c": s.c} {
				if bytes >= 0 {
					received[name] = uint64(bytes)
				}
			}
			got := m.update(s.at, received)
			if got != s.want {
				t.Errorf("%s: after %d s: unreachable %q, want %q", c.name, s.at, got, s.want)
			}
		}
	}
}

// TestUnreachableGatewayStaysSoWhenResumed resumes a monitor whose engine has counted bytes before, and one whose engine is new.
func TestUnreachableGatewayStaysSoWhenResumed(t *testing.T) {
	for _, bytes := range []uint64{0, 900} {
		var m monitorTest
		m.Resume([]string{"b", "gone"})
		for _, at := range []int{0, 11, 12, 40, 60} {
			if got := m.update(at, map[string]uint64{"b": bytes, "c": uint64(at)}); got != "b" && got != "b c" { // c may be silent between two steps
				t.Errorf("%d bytes, after %d s: unreachable %q, want b", bytes, at, got)
			}
		}
	}
}

// TestMonitorThatRunsResumesUnreachableGateways has a monitor that hears one of two gateways before it knows that both were unreachable.
func TestMonitorThatRunsResumesUnreachableGateways(t *testing.T) {
	var m monitorTest
	m.update(0, map[string]uint64{"b": 0, "c": 0})
	m.update(5, map[string]uint64{"b": 0, "c": 32})
	m.Resume([]string{"b", "c"})
	for at := 6; at < 40; at++ {
		want := "b c"
		if at >= 35 { // 30 s after c was first heard
			want = "b"
		}
		if got := m.update(at, map[string]uint64{"b": 0, "c": uint64(32 * at)}); got != want {
			t.Errorf("after %d s: unreachable %q, want %q", at, got, want)
		}
	}
}

// TestPausedGatewayBlamesNoOther has a gateway that gets no CPU time for a minute, as in a migration of its virtual machine.
func TestPausedGatewayBlamesNoOther(t *testing.T) {
	var m monitorTest
	m.update(10, map[string]uint64{"b": 0})
	m.update(15, map[string]uint64{"b": 32})
	m.at = 75 // no update in between
	if got := m.update(76, m.last); got != "" {
		t.Errorf("after the pause: unreachable %q, want none", got)
	}
	if got := m.update(90, m.last); got != "b" {
		t.Errorf("still silent afterwards: unreachable %q, want b", got)
	}
}

// TestGatewayFoundAfterPauseHasUsualTime has an engine that was away for an hour, and then another gateway.
func TestGatewayFoundAfterPauseHasUsualTime(t *testing.T) {
	var m monitorTest
	m.update(10, map[string]uint64{"b": 0})
	m.at = 3610 // no update in between
	m.update(3611, map[string]uint64{"b": 0, "c": 0})
	if got := m.update(3623, m.last); got != "b c" {
		t.Errorf("both are silent for 12 s after the pause: unreachable %q, want b c", got)
	}
}
