// SPDX-License-Identifier: Apache-2.0

package spreader_test

import (
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

func TestExampleAttachesShowsAndDetaches(t *testing.T) {
	host, cfg, do := spreader.AttachedHost(t)
	var out strings.Builder
	do(func() error { return spreadAndShow(t.Context(), host, cfg, &out) })
	if want := "wg0: 1 peer over 16 source ports\ncable.7: 1 tunnel, 0 problems\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	do(func() error {
		devices, err := host.Status(t.Context(), "")
		if len(devices) != 0 {
			t.Errorf("still attached: got %+v, want length 0", devices)
		}
		return err
	})
}
