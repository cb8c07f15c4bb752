// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"testing"
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
		if _, err := m.Run(t.Context(), &Lab{}, testStretch); !errors.Is(err, ErrNoDaemon) {
			t.Errorf("%s of a bare cable: %v", m.Name, err)
		}
	}
}
