// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"slices"
	"testing"
)

func TestRangesOfPorts(t *testing.T) {
	for _, c := range []struct {
		ports           Ports
		len             int
		contains, lacks uint16
		text            string
	}{
		{Ports{}, 0, 0, 1, "0-0"},
		{Ports{61000, 61999}, 1000, 61999, 62000, "61000-61999"},
		{Ports{5, 5}, 1, 5, 4, "5-5"},
		{Ports{1, 65535}, 65535, 65535, 0, "1-65535"},
		{Ports{0, 10}, 0, 0, 5, "0-10"}, // port 0 is none
		{Ports{10, 9}, 0, 0, 10, "10-9"},
	} {
		if got := c.ports.Len(); got != c.len {
			t.Errorf("%s: length %d, want %d", c.ports, got, c.len)
		}
		if c.ports.Contains(c.lacks) || c.len > 0 && !c.ports.Contains(c.contains) {
			t.Errorf("%s contains the wrong ports", c.ports)
		}
		if got := c.ports.String(); got != c.text {
			t.Errorf("got %q, want %q", got, c.text)
		}
	}
}

func TestAllPortsOfARangeAreInOrder(t *testing.T) {
	for ports, want := range map[Ports][]uint16{{First: 65533, Last: 65535}: {65533, 65534, 65535}, {First: 7, Last: 7}: {7}, {}: {}} {
		if got := ports.All(); !slices.Equal(got, want) {
			t.Errorf("%v: got %v, want %v", ports, got, want)
		}
	}
}
