// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

func TestPathsAreSeparateAndDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range slices.Concat(Measures(), Special()) {
		if seen[m.Name] || m.Name == "" || m.Unit == "" || m.What == "" || m.Run == nil {
			t.Errorf("%q is there twice, or does not say what it is", m.Name)
		}
		seen[m.Name] = true
	}
}

func TestQUICWithoutProgramIsAnError(t *testing.T) {
	_, err := quicBothWays(t.Context(), &Lab{Lab: &testbed.Lab{}}, time.Second)
	if err == nil || errors.Is(err, testbed.ErrNoDaemon) {
		t.Errorf("got %v", err)
	}
}
