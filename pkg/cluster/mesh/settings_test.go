// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func TestHighestPriorityConfigApplies(t *testing.T) {
	at := func(name string, age int64, priority int32) NodeConfig {
		return NodeConfig{Name: name, Created: time.Unix(age, 0), Priority: priority}
	}
	for _, c := range []struct {
		name      string
		selecting []NodeConfig
		chosen    string
		rivals    []string
	}{
		{"none", nil, "", nil},
		{"one", []NodeConfig{at("a", 1, -5)}, "a", nil},
		{"priority precedes age", []NodeConfig{at("old", 1, 0), at("new", 2, 1)}, "new", nil},
		{"a rival of a lower priority is none", []NodeConfig{at("b", 1, 0), at("c", 2, 0), at("a", 3, 7)}, "a", nil},
		{"the oldest of equal priority", []NodeConfig{at("c", 1, 3), at("b", 3, 3), at("a", 2, 3), at("d", 0, 2)}, "c", []string{"a", "b"}},
		{"the name of equal age", []NodeConfig{at("b", 1, 0), at("a", 1, 0)}, "a", []string{"b"}},
	} {
		for range 2 { // in any order
			slices.Reverse(c.selecting)
			chosen, rivals := ChooseConfig(c.selecting)
			name := ""
			if chosen != nil {
				name = chosen.Name
			}
			if name != c.chosen || !slices.Equal(rivals, c.rivals) {
				t.Errorf("%s: got %q with rivals %v, want %q with %v", c.name, name, rivals, c.chosen, c.rivals)
			}
		}
	}
}

func TestSettingsOverlayOthers(t *testing.T) {
	udp, xdp := config.UnderlayUDP, config.UnderlayXDP
	flags := Settings{Port: 1, MTU: 1400, Keepalive: 5, Underlay: &xdp}
	for _, c := range []struct{ over, want Settings }{
		{Settings{}, flags},
		{Settings{MTU: 1300}, Settings{1, 1300, 5, &xdp}},
		{Settings{Underlay: &udp}, Settings{1, 1400, 5, &udp}},
		{Settings{Port: 2, Keepalive: 25}, Settings{2, 1400, 25, &xdp}},
	} {
		if got := c.over.Over(flags); got != c.want {
			t.Errorf("%+v over the flags: got %+v, want %+v", c.over, got, c.want)
		}
	}
}
