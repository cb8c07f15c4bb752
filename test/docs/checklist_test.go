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
	text, err := os.ReadFile(filepath.Join(root, "docs", "dev", "reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "## Checklist for reviewers")
	list, _, _ = strings.Cut(list, "\n### ")
	row := regexp.MustCompile("^\\| .* \\| `([a-z/]+)`((?:,? `Test[A-Za-z0-9]+`)+) \\|$")
	rows := 0
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| claim |") || strings.HasPrefix(line, "| --- |") {
			continue
		}
		cells := row.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if cells == nil {
			t.Errorf("a row names no directory and test: %s", line)
			continue
		}
		rows++
		for _, name := range regexp.MustCompile("Test[A-Za-z0-9]+").FindAllString(cells[2], -1) {
			if !hasTest(t, cells[1], name) {
				t.Errorf("%s has no %s", cells[1], name)
			}
		}
	}
	if !found || rows < 20 {
		t.Errorf("%d rows name a directory and tests", rows)
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
