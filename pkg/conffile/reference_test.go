// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"strings"
	"testing"
)

func TestEveryKeyIsExplainedToPeople(t *testing.T) {
	for _, k := range Keys() {
		if k.Values == "" || k.Default == "" || !strings.HasSuffix(k.About, ".") {
			t.Errorf("%s: its doc says %q, %q, %q", k.Name, k.Values, k.Default, k.About)
		}
	}
}

func TestDocumentedKeysAreThoseThatFilesMayHave(t *testing.T) {
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
