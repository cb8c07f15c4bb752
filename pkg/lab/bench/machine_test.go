// SPDX-License-Identifier: Apache-2.0

package bench

import "testing"

func TestCPUModelIsFound(t *testing.T) {
	if got := cpuModel("processor\t: 0\nmodel\t\t: 1\nmodel name\t: Some   CPU @ 3GHz\n"); got != "Some CPU @ 3GHz" {
		t.Errorf("%q", got)
	}
	if got := cpuModel("processor : 0\nCPU part : 0xd0c\n"); got != "0xd0c" {
		t.Errorf("%q", got)
	}
	if got := cpuModel(""); got != "" {
		t.Errorf("%q", got)
	}
}
