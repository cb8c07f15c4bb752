// SPDX-License-Identifier: Apache-2.0

package daemon

import "testing"

func TestAutoWorkersLeaveTwoCPUsFree(t *testing.T) {
	for wanted, want := range map[int][]int{AutoWorkers: {0, 0, 1, 2, 4, 4}, 0: {0, 0, 0, 0, 0, 0}, 3: {3, 3, 3, 3, 3, 3}} {
		for i, cpus := range []int{1, 2, 3, 4, 6, 64} {
			if n := workers(wanted, cpus); n != want[i] {
				t.Errorf("%d: got %d workers with %d CPUs, want %d", wanted, n, cpus, want[i])
			}
		}
	}
}
