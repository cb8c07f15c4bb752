// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestRunRejectsInvalidFlagValues(t *testing.T) {
	for _, tc := range []struct{ flag, value, want string }{
		{"--spread", "sometimes", "want auto, off or on"},
		{"--spread-ports", "61000", "want two ports, such as 61000-61999"},
		{"--spread-ports", "80-90", "range 80-90 has privileged ports, below 1024, in it"},
		{"--spread-ports", "3000-2000", "range 3000-2000 ends before it begins"},
		{"--lanes", "257", "want 1 to 256"},
		{"--nice", "-21", "want -20 to 19"},
		{"--nice", "20", "want -20 to 19"},
		{"--workers", "65", "want auto, or 0 to 64"},
		{"--workers", "-1", "want auto, or 0 to 64"},
		{"--workers", "some", "want auto, or 0 to 64"},
	} {
		_, _, err := execute(t, newRootCmd(), "", "run", tc.flag, tc.value, "wg0")
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.value) {
			t.Errorf("%s %s: got error %v, want an error", tc.flag, tc.value, err)
		}
	}
}
