// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"path/filepath"
	"testing"
)

func TestSocketGlobMatchesOnlyDemoSockets(t *testing.T) {
	for name, want := range map[string]bool{
		interfaceName("1a2b3", "left"): true, interfaceName("1a2b3", "right"): true, "rb1a2b3a": false, "rw0": false,
	} {
		if got, err := filepath.Match(socketGlob, name+".sock"); got != want || err != nil {
			t.Errorf("%s: got %t, error %v, want %t, no error", name, got, err, want)
		}
	}
}
