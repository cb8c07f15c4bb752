// SPDX-License-Identifier: Apache-2.0

package language

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the repository.
const root = "../.."

func TestRepositoryFollowsTheLanguageRules(t *testing.T) {
	rules := readRules(t)
	files := 0
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if skipDir(filepath.ToSlash(name)) {
				return filepath.SkipDir
			}
			return nil
		}
		for _, f := range rules.Path(filepath.ToSlash(name)) {
			t.Errorf("%s: %q: use %s", name, f.Text, f.Instead)
		}
		kind := kindOf(name)
		if kind == other {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for _, f := range rules.Check(kind, text) {
			t.Errorf("%s:%d: %q: use %s", name, f.Line, f.Text, f.Instead)
		}
		if !hasSentences(name) {
			return nil
		}
		for _, f := range Sentences(kind, text) {
			t.Errorf("%s:%d: %q: use %s", name, f.Line, f.Text, f.Instead)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 500 {
		t.Errorf("checked only %d files", files)
	}
}

// skipDir reports whether a directory holds no text of the project.
func skipDir(name string) bool {
	base := filepath.Base(name)
	return slices.Contains([]string{".git", "bin", "build", "plots"}, base) || name == "test/language"
}

func readRules(t *testing.T) *Rules {
	t.Helper()
	text, err := os.ReadFile("words.txt")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func TestRulesFindWordsNamesAndForms(t *testing.T) {
	rules := readRules(t)
	for _, c := range []struct {
		kind kind
		text string
		want []string
	}{
		{markdown, "It mends the host.\n", []string{"mends"}},
		{markdown, "```\nmend\n```\nUse `mend` here.\n", []string{"mend", "mend"}},
		{markdown, "```\nodometer\n```\nIt counts ropewalk_crew_size.\n", []string{"odometer", "ropewalk_crew_size"}},
		{markdown, "First sentence. What is not known is dropped.\n", []string{"What is not known is dropped"}},
		{markdown, "What is a lane?\n", nil},
		{goFile, "package p\n\n// F mends it.\nfunc F() {}\n", []string{"mends"}},
		{goFile, "package p\n\nvar crewSize = \"lest it fail\"\n", []string{"crewSize", "lest"}},
		{goFile, "package p\n\n// T is done. What was kept\n// is gone.\ntype T int\n", []string{"What was kept is gone"}},
		{goFile, "package p\n\nvar screwdriver int\n", nil},
		{goFile, "package p\n\nvar way, oneWay = \"rx_crew\", \"a crew\"\n", []string{"way", "rx_crew"}},
		{comments, "# mended by hand\nkey: value\n", []string{"mended"}},
		{cFile, "/* lest it fail */\nint crew_size;\n", []string{"lest", "crew_size"}},
	} {
		var got []string
		for _, f := range rules.Check(c.kind, []byte(c.text)) {
			got = append(got, f.Text)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: found %q, want %q", c.text, got, c.want)
		}
	}
}

func TestPathsAreChecked(t *testing.T) {
	if found := readRules(t).Path("pkg/crew/screws_desk.go"); len(found) != 2 || found[0].Text != "crew" || found[1].Text != "screws_desk" {
		t.Errorf("found %v", found)
	}
}

func TestParseRejectsMalformedRules(t *testing.T) {
	for _, text := range []string{"word\tlest", "verb\tlest\tuse", "form\t(\tuse"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestKindOfFiles(t *testing.T) {
	for name, want := range map[string]kind{
		"README.md": markdown, "CHANGELOG.md": markdown, "pkg/a/b.go": goFile, "bpf/x.bpf.c": cFile, "bpf/include/x.h": cFile, "Makefile": comments,
		".golangci.yml": comments, "x.sh": comments, "go.sum": other, "x_bpfel.go": other, "x.golden": other,
	} {
		if got := kindOf(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestMakeCheckRunsTheLanguageCheck(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, check, _ := strings.Cut(string(text), "\ncheck: ")
	recipe, _, _ := strings.Cut(check, "\n\n")
	if !strings.Contains(recipe, "./test/language") {
		t.Errorf("the recipe of check is %q", recipe)
	}
}
