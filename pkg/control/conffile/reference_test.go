// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"strings"
	"testing"
)

func TestEveryKeyIsDocumentedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Keys() {
		if k.Values == "" || k.Default == "" || k.About == "" || seen[k.Section+k.Name] {
			t.Errorf("%s: documented as %q, %q, %q; seen before: %v", k.Name, k.Values, k.Default, k.About, seen[k.Section+k.Name])
		}
		seen[k.Section+k.Name] = true
	}
}

func TestDocumentedKeysAreAcceptedInTheirDialect(t *testing.T) {
	for _, k := range Keys() {
		for dialect, want := range map[Dialect]bool{WG: k.Origin == "wg", Quick: true} {
			_, err := Parse("f", strings.NewReader("["+k.Section+"]\n"+k.Name+" = \n"), dialect)
			known := err == nil || !strings.Contains(err.Error(), "unknown key")
			if known != want {
				t.Errorf("dialect %d, %s: %v", dialect, k.Name, err)
			}
		}
	}
}
