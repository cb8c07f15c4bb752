// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"errors"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

func TestTrialsAreSeparateAndRequireDaemon(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range Measures() {
		seen[m.Name] = true
	}
	for _, m := range Trials() {
		if seen[m.Name] || m.Name == "" || m.Unit == "" || m.What == "" {
			t.Errorf("%q is there twice, or does not say what it is", m.Name)
		}
		seen[m.Name] = true
		if _, err := m.Run(t.Context(), &Lab{Lab: &testbed.Lab{}}, time.Second); !errors.Is(err, testbed.ErrNoDaemon) {
			t.Errorf("%s of a bare cable: %v", m.Name, err)
		}
	}
}
