// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestRunRefusesFlagsThatCannotBe(t *testing.T) {
	for _, tc := range []struct{ flag, value, want string }{
		{"--spread", "sometimes", "want auto, off or on"},
		{"--spread-ports", "61000", "want two ports, such as 61000-61999"},
		{"--spread-ports", "80-90", "range 80-90 has privileged ports, below 1024, in it"},
		{"--spread-ports", "3000-2000", "range 3000-2000 ends before it begins"},
		{"--lanes", "257", "want 1 to 256"},
	} {
		_, _, err := execute(t, newRootCmd(), "", "run", tc.flag, tc.value, "wg0")
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.value) {
			t.Errorf("%s %s: %v", tc.flag, tc.value, err)
		}
	}
}

func TestLocalPortRangeIsRead(t *testing.T) {
	p, err := localPorts()
	if err != nil {
		t.Skip("needs /proc/sys/net/ipv4: ", err)
	}
	if p.Len() == 0 {
		t.Error(p)
	}
}
