// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func TestOnOffIsParsed(t *testing.T) {
	for text, want := range map[string]config.OnOff{"on": true, "ON": true, "off": false, "Off": false} {
		if got, err := config.ParseOnOff(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "true", "yes", "auto"} {
		if _, err := config.ParseOnOff(text); err == nil {
			t.Errorf("%q: got no error", text)
		}
	}
}
