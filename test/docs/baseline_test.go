// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestLinksAreEncrypted(t *testing.T) {
	for _, p := range pages(t) {
		for _, l := range p.Links {
			if scheme, _, ok := strings.Cut(l.Text, "://"); ok && scheme != "https" {
				t.Errorf("%s:%d: %s is not https", p.Path, l.Line, l.Text)
			}
		}
	}
}

// TestAssessmentHasEvidenceForEveryRequirement compares docs/dev/baseline.md with the list of the baseline. TestLinkTargetsExist follows the links.
func TestAssessmentHasEvidenceForEveryRequirement(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/dev/baseline.md"))
	expect.NoError(t, err)
	list, err := os.ReadFile("testdata/osps-baseline.txt")
	expect.NoError(t, err)
	type row struct{ level, state, evidence string }
	rows := map[string]row{}
	for _, m := range regexp.MustCompile(`(?m)^\| (OSPS-[A-Z0-9.-]+) \| (\d) \| (.*?) \| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
		if _, twice := rows[m[1]]; twice {
			t.Errorf("%s stands there twice", m[1])
		}
		rows[m[1]] = row{m[2], m[3], m[4]}
	}
	required := 0
	for line := range strings.Lines(string(list)) {
		id, level, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || !strings.HasPrefix(id, "OSPS-") {
			continue
		}
		required++
		r, ok := rows[id]
		switch {
		case !ok:
			t.Errorf("%s is missing", id)
		case r.level != level:
			t.Errorf("%s: got level %s, want %s", id, r.level, level)
		case !slices.Contains([]string{"met", "setting", "no release", "**not met**"}, r.state):
			t.Errorf("%s: unknown state %q", id, r.state)
		case !regexp.MustCompile(`\[[^]]+\]\([^):]+\)`).MatchString(r.evidence):
			t.Errorf("%s has no link to evidence in the repository", id)
		}
	}
	if required != 64 || len(rows) != required {
		t.Errorf("got %d rows for %d requirements, want 64 of both", len(rows), required)
	}
}
