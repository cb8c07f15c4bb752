// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func TestSprayIsParsed(t *testing.T) {
	for text, want := range map[string]struct {
		spray config.Spray
		ports int
		text  string
	}{
		"off": {config.SprayOff, 0, "off"}, "OFF": {config.SprayOff, 0, "off"}, "auto": {config.SprayAuto, 4, "auto"},
		"2": {2, 2, "2"}, "16": {16, 16, "16"},
	} {
		got, err := config.ParseSpray(text)
		if err != nil || got != want.spray || got.Ports() != want.ports || got.String() != want.text {
			t.Errorf("%q: got %v, %d ports, %v, want %+v", text, got, got.Ports(), err, want)
		}
	}
	for _, text := range []string{"", "on", "0", "1", "17", "300", "-2"} {
		if got, err := config.ParseSpray(text); err == nil {
			t.Errorf("%q: got %v and no error", text, got)
		}
	}
}
