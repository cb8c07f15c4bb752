// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"io/fs"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMissingCapabilitiesAreNamed(t *testing.T) {
	set := func(capabilities ...int) (mask uint64) {
		for _, c := range capabilities {
			mask |= 1 << c
		}
		return mask
	}
	for _, tt := range []struct {
		have uint64
		want []string
	}{
		{0, []string{"CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"}},
		{set(unix.CAP_NET_ADMIN), []string{"CAP_BPF", "CAP_PERFMON"}},
		{set(unix.CAP_NET_ADMIN, unix.CAP_BPF), []string{"CAP_PERFMON"}},
		{set(unix.CAP_SYS_ADMIN), []string{"CAP_NET_ADMIN"}},
		{set(unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON), nil},
	} {
		if got := missingCapabilities(tt.have); !slices.Equal(got, tt.want) {
			t.Errorf("%x: got %v, want %v", tt.have, got, tt.want)
		}
	}
	if got := explainRights(fs.ErrNotExist); got != "" {
		t.Errorf("got %q for another error, want none", got)
	}
}
