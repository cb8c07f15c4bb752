// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// TestOperationsExplainsEveryDropReason checks the table of drop reasons: one row for each in the order of the constants, with its help
// text, a diagnosis and a fix.
func TestOperationsExplainsEveryDropReason(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `((?:tx|rx|hs|hello|exchange)_[a-z0-9_]+)` \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\|$")
	var got, want [][2]string
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		got = append(got, [2]string{m[1], m[2]})
	}
	for r := drop.None + 1; r < drop.Count; r++ {
		want = append(want, [2]string{r.String(), r.Help()})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the table of drop reasons in docs/operations.md (-want +got):\n%s", diff)
	}
}
