// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRunsAreCountedBySizeClass(t *testing.T) {
	var batch RunSizes
	for _, n := range []int{1, 2, 3, 4, 5, 64, 65, 128, 129, 2048} {
		batch.Note(n)
	}
	want := RunSizes{Runs: [sizeClasses]uint64{1, 1, 2, 1, 0, 0, 1, 4}, Messages: 1 + 2 + 3 + 4 + 5 + 64 + 65 + 128 + 129 + 2048}
	if diff := cmp.Diff(want, batch); diff != "" {
		t.Error(diff)
	}
	var c sizeCounters
	c.Publish(&batch)
	c.Publish(&RunSizes{})
	c.Publish(&batch)
	twice := want
	twice.Add(&want)
	if diff := cmp.Diff(twice, c.load()); diff != "" {
		t.Error(diff)
	}
}

func TestRunBytesAreCountedAsMessages(t *testing.T) {
	for _, tt := range []struct{ n, size, want int }{
		{0, 0, 1}, {0, 100, 1}, {100, 0, 1}, {100, -1, 1}, {100, 100, 1}, {101, 100, 2}, {6400, 100, 64}, {1, 1500, 1},
	} {
		var r RunSizes
		if r.NoteBytes(tt.n, tt.size); r.Messages != uint64(tt.want) {
			t.Errorf("%d bytes of %d: got %d messages, want %d", tt.n, tt.size, r.Messages, tt.want)
		}
	}
}
