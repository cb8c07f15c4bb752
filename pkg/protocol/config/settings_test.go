// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"reflect"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func TestTableHasEachSettingWithItsDefault(t *testing.T) {
	var s, copied config.Settings
	for _, row := range config.Table() {
		if text, given := row.Text(&s); given {
			t.Errorf("%s: given as %q by none", row.Name, text)
		}
		if err := row.Set(&s, row.Default); err != nil {
			t.Errorf("%s: default %q: %v", row.Name, row.Default, err)
		}
		if text, given := row.Text(&s); !given || text != row.Default {
			t.Errorf("%s: got %q, %v, want %q", row.Name, text, given, row.Default)
		}
		for _, word := range row.Words() {
			if err := row.Set(&s, word); err != nil {
				t.Errorf("%s: %s of %s: %v", row.Name, word, row.Form, err)
			}
		}
		if err := row.Set(&s, "maybe"); err == nil {
			t.Errorf("%s takes any value", row.Name)
		}
		if reflect.ValueOf(s).FieldByName(row.Name).IsNil() {
			t.Errorf("%s does not set the field of its name", row.Name)
		}
	}
	if fields := reflect.TypeFor[config.Settings]().NumField(); fields != len(config.Table()) || len(s.Texts()) != fields {
		t.Errorf("%d fields, %d rows, %d texts", fields, len(config.Table()), len(s.Texts()))
	}
	on := config.SpreadOn
	copied.Spread = &on
	copied.Fill(&s)
	if copied.Spread != &on || copied.Spray != s.Spray || copied.PostQuantum != s.PostQuantum {
		t.Errorf("got %v, want what it had, and the rest of %v", copied.Texts(), s.Texts())
	}
}

func TestSettingsNamesFollowEachOther(t *testing.T) {
	for _, row := range config.Table() {
		if row.Name == "SpreadPorts" && row.Key() == "spread_ports" && row.Flag() == "spread-ports" {
			return
		}
	}
	t.Error("SpreadPorts, spread_ports and spread-ports are no names of one setting")
}
