// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/docs/page"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestLinkTargetsExist(t *testing.T) {
	byPath := map[string]*page.Page{}
	for _, p := range pages(t) {
		byPath[p.Path] = p
	}
	links := 0
	for _, p := range byPath {
		for _, l := range p.Links {
			if strings.Contains(l.Text, "://") {
				continue
			}
			links++
			target, fragment, _ := strings.Cut(l.Text, "#")
			to := p.Path
			if target != "" {
				to = path.Join(path.Dir(p.Path), target)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s:%d: %s does not exist", p.Path, l.Line, l.Text)
			} else if fragment != "" && (byPath[to] == nil || !slices.Contains(byPath[to].Anchors, fragment)) {
				t.Errorf("%s:%d: %s has no anchor #%s", p.Path, l.Line, to, fragment)
			}
		}
	}
	if links < 40 {
		t.Errorf("found only %d links: does the search still work?", links)
	}
}

func TestIndexLinksEveryPage(t *testing.T) {
	all := pages(t)
	i := slices.IndexFunc(all, func(p *page.Page) bool { return p.Path == "docs/README.md" })
	if i < 0 {
		t.Fatal("docs/README.md does not exist")
	}
	for _, p := range all {
		name, ok := strings.CutPrefix(p.Path, "docs/")
		if ok && name != "README.md" && !slices.ContainsFunc(all[i].Links, func(l page.Span) bool { return l.Text == name }) {
			t.Errorf("docs/README.md has no link to %s", name)
		}
	}
}

// TestPagesLinkGlossary checks each page that has words of ropewalk's own.
func TestPagesLinkGlossary(t *testing.T) {
	own := regexp.MustCompile(`(?i)\b(lane|train|hello)s?\b`)
	for _, p := range pages(t) {
		text, err := os.ReadFile(filepath.Join(root, p.Path))
		expect.NoError(t, err)
		linked := slices.ContainsFunc(p.Links, func(l page.Span) bool {
			target, _, _ := strings.Cut(l.Text, "#")
			return path.Base(target) == "glossary.md"
		})
		if strings.HasPrefix(p.Path, "docs/") && p.Path != "docs/glossary.md" && own.Match(text) && !linked {
			t.Errorf("%s uses lane, train or hello and does not link the glossary", p.Path)
		}
	}
}

// TestNamedPathsExist checks code spans and words of commands that begin with a directory of the repository.
func TestNamedPathsExist(t *testing.T) {
	named, found := regexp.MustCompile(`^(\./)?(bpf|cmd|deploy|docs|pkg|test)/[A-Za-z0-9_./@-]+$`), 0
	for _, p := range pages(t) {
		if p.Path == "CHANGELOG.md" {
			continue
		}
		spans := slices.Clone(p.Spans)
		for _, b := range p.Blocks {
			for _, words := range page.Commands(b.Text) {
				for _, w := range words {
					spans = append(spans, page.Span{Line: b.Line, Text: w})
				}
			}
		}
		for _, s := range spans {
			name := strings.TrimSuffix(strings.TrimRight(s.Text, ".,"), "/...")
			if !named.MatchString(name) {
				continue
			}
			found++
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("%s:%d: %s does not exist", p.Path, s.Line, s.Text)
			}
		}
	}
	if found < 25 {
		t.Errorf("found only %d paths: does the search still work?", found)
	}
}

// TestArchitectureListsEveryPackage compares the table of rooms with the directories of pkg.
func TestArchitectureListsEveryPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, layers, _ := strings.Cut(string(text), "\n## The layers\n")
	layers, _, _ = strings.Cut(layers, "\n**For other programs**")
	listed := map[string]bool{}
	code := regexp.MustCompile("`([a-z0-9]+(?:/[a-z0-9]+)*)`")
	for line := range strings.Lines(layers) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		room := code.FindStringSubmatch(cells[1])
		if room == nil {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(cells[2], -1) {
			listed[room[1]+"/"+m[1]] = true
		}
	}
	for _, name := range packagesBelow(t, filepath.Join(root, "pkg")) {
		if !listed[name] {
			t.Errorf("docs/architecture.md does not list pkg/%s", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("docs/architecture.md lists pkg/%s, which does not exist", name)
	}
}

// packagesBelow returns the directories with Go code two or more levels below dir, without test support and packages that are
// internal to one package.
func packagesBelow(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		parts := strings.Split(filepath.ToSlash(name), "/")
		base := parts[len(parts)-1]
		switch {
		case !d.IsDir() || len(parts) < 2:
			return nil
		case base == "testdata" || strings.HasPrefix(base, "_") || strings.HasSuffix(base, "test") || len(parts) > 2 && base == "internal":
			return filepath.SkipDir
		}
		if code, _ := filepath.Glob(filepath.Join(path, "*.go")); len(code) > 0 {
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
