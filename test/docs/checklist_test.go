// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestChecklistNamesExistingTests checks each directory and test in the checklist for reviewers.
func TestChecklistNamesExistingTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "## Checklist for reviewers")
	list, _, _ = strings.Cut(list, "\n### ")
	rows := regexp.MustCompile("(?m)^\\| .* \\| `([a-z/]+)` `(Test[A-Za-z0-9]+)` \\|$").FindAllStringSubmatch(list, -1)
	const header = 2
	if lines := strings.Count(list, "\n| ") - header; !found || lines < 20 || len(rows) != lines {
		t.Fatalf("%d of %d rows name a directory and a test", len(rows), lines)
	}
	for _, row := range rows {
		if !hasTest(t, row[1], row[2]) {
			t.Errorf("%s has no %s", row[1], row[2])
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
