// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/docs/page"
)

// TestEveryShellBlockRunsOrHasReason checks the syntax of all shell blocks, and logs the reasons of those that do not run.
func TestEveryShellBlockRunsOrHasReason(t *testing.T) {
	_, notRun, err := plan(pages(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages(t) {
		for _, b := range p.Blocks {
			if b.Lang != "sh" && b.Lang != "console" {
				continue
			}
			check := exec.Command("bash", "-n")
			check.Stdin = strings.NewReader(b.Text)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: got %s", b.Name(), err, out)
			}
			if reason, ok := notRun[b.Name()]; ok {
				t.Logf("%s does not run: %s", b.Name(), reason)
			}
		}
	}
}

func TestExceptionsMatchExistingBlocks(t *testing.T) {
	all := pages(t)
	for _, e := range exceptions() {
		found := false
		for _, p := range all {
			for _, b := range p.Blocks {
				found = found || b.Page == e.page && strings.HasPrefix(b.First(), e.begins) && b.Marker == "" && b.Lang != ""
			}
		}
		if !found {
			t.Errorf("%s has no block without marker that begins with %q", e.page, e.begins)
		}
	}
}

// TestNamedMakeTargetsExist checks calls of make in blocks and in code spans.
func TestNamedMakeTargetsExist(t *testing.T) {
	targets := makeTargets(t)
	target, found := regexp.MustCompile(`^[a-z][a-z0-9-]*$`), 0
	for _, p := range pages(t) {
		if p.Path == "CHANGELOG.md" {
			continue
		}
		for line, args := range p.Calls("make") {
			for _, arg := range args {
				if !target.MatchString(arg) {
					break // a variable, or the rest of a sentence
				}
				found++
				if !targets[arg] {
					t.Errorf("%s:%d: the Makefile has no target %s", p.Path, line, arg)
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("found only %d references: does the search still work?", found)
	}
}

// makeTargets returns the names of all targets that are not files.
func makeTargets(t *testing.T) map[string]bool {
	targets := map[string]bool{}
	for _, name := range []string{"Makefile", "deploy/package/package.mk"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllStringSubmatch(string(text), -1) {
			targets[m[1]] = true
		}
	}
	return targets
}

func TestMakeHelpListsEveryTarget(t *testing.T) {
	out, err := exec.Command("make", "-C", root, "--no-print-directory", "help").Output()
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for word := range strings.FieldsSeq(string(out)) {
		listed[word] = true
	}
	for target := range makeTargets(t) {
		if !listed[target] {
			t.Errorf("make help does not list %s", target)
		}
	}
}

// TestGoTestPatternsMatchFunctions checks the patterns of -run and -bench in calls of go test.
func TestGoTestPatternsMatchFunctions(t *testing.T) {
	found := 0
	for _, p := range pages(t) {
		for line, args := range p.Calls("go") {
			if len(args) == 0 || args[0] != "test" || p.Path == "CHANGELOG.md" {
				continue
			}
			found++
			if err := checkGoTest(args[1:]); err != nil {
				t.Errorf("%s:%d: go %s: %v", p.Path, line, strings.Join(args, " "), err)
			}
		}
	}
	if found < 8 {
		t.Errorf("found only %d references: does the search still work?", found)
	}
}

// checkGoTest returns an error if the packages in args have no test or benchmark that -run or -bench matches.
func checkGoTest(args []string) error {
	var names []string
	patterns := map[string]string{} // keyed by the prefix of the functions
	for i, arg := range args {
		switch {
		case strings.HasPrefix(arg, "./") && !strings.HasSuffix(arg, "..."):
			found, err := testFunctions(arg)
			if err != nil {
				return err
			}
			names = append(names, found...)
		case arg == "-bench" && i+1 < len(args):
			patterns["Benchmark"] = args[i+1]
		case arg == "-run" && i+1 < len(args):
			patterns["Test"] = args[i+1]
		}
	}
	for kind, pattern := range patterns {
		re, err := regexp.Compile(strings.ReplaceAll(pattern, `\|`, "|"))
		if err != nil {
			return err
		}
		matches := func(name string) bool { return strings.HasPrefix(name, kind) && re.MatchString(name) }
		if len(names) > 0 && pattern != "^$" && !slices.ContainsFunc(names, matches) {
			return fmt.Errorf("no %s function matches %s", kind, pattern)
		}
	}
	return nil
}

// testFunctions returns the tests and benchmarks of a package.
func testFunctions(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has no tests", dir)
	}
	return declared(files)
}

// declared returns the tests and benchmarks that the files declare.
func declared(files []string) (names []string, err error) {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)`).FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names, nil
}

// TestNamedTestsExist checks tests named in code spans and in markers. They may be in any package, also of other modules.
func TestNamedTestsExist(t *testing.T) {
	names, found := allTests(t), 0
	check := func(p *page.Page, line int, name string) {
		found++
		if !slices.Contains(names, name) {
			t.Errorf("%s:%d: no test is named %s", p.Path, line, name)
		}
	}
	name := regexp.MustCompile(`\bTest[A-Z]\w+`)
	for _, p := range pages(t) {
		for _, s := range p.Spans {
			if name.FindString(s.Text) == s.Text {
				check(p, s.Line, s.Text)
			}
		}
		for _, b := range p.Blocks {
			for _, n := range name.FindAllString(b.Marker, -1) {
				check(p, b.Line, n)
			}
		}
	}
	if found < 5 {
		t.Errorf("found only %d references: does the search still work?", found)
	}
}

// allTests returns the tests and benchmarks of all packages.
func allTests(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{".git", "build"}, d.Name()) {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names, err := declared(files)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestInvalidMarkersAreRejected(t *testing.T) {
	for marker, want := range map[string]bool{
		"test: tunnel": true, "not run: for a good reason": true, "": true,
		"not run: no": false, "tset: tunnel": false, "not run": false,
	} {
		_, _, err := parseMarker(page.Block{Page: "docs/x.md", Marker: marker, Lang: "sh"})
		if (err == nil) != want {
			t.Errorf("%q: got error %v", marker, err)
		}
	}
	for text, want := range map[string]bool{
		"<!-- test: next -->\n```sh\nx\n```\n":                                       false,
		"<!-- test: host -->\n```\nx\n```\n":                                         false,
		"```sh\nx\n```\n<!-- test: next -->\n```sh\ny\n```\n":                        true,
		"<!-- not run: takes too long -->\n```sh\nx\n```\n<!-- x -->\n```ini\n```\n": true,
	} {
		_, _, err := plan([]*page.Page{page.Parse("docs/x.md", text)})
		if (err == nil) != want {
			t.Errorf("%q: got error %v", text, err)
		}
	}
}

// TestProfileStagesNameExistingMethods checks the methods by which test/folded.awk recognises the stages of a profile.
func TestProfileStagesNameExistingMethods(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "test/folded.awk"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`\(\\\*(\w+)\\\)(?:\\\.(\w+))?`).FindAllStringSubmatch(string(text), -1)
	if len(found) < 3 {
		t.Errorf("found only %d methods: does the search still work?", len(found))
	}
	for _, m := range found {
		method := `^func (\w* \*` + m[1] + `) ` + m[2]
		if err := exec.Command("grep", "-rq", "--include=*.go", method, filepath.Join(root, "pkg")).Run(); err != nil {
			t.Errorf("pkg has no method (*%s).%s", m[1], m[2])
		}
	}
}

// TestSettingStandsInFewFiles counts the example of CONTRIBUTING.md.
func TestSettingStandsInFewFiles(t *testing.T) {
	var files []string
	for _, dir := range []string{"pkg", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if strings.Contains(string(text), "OuterFragments") {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(files) < 2 || len(files) > 6 {
		t.Errorf("OuterFragments stands in %d files, want 2 to 6: %v", len(files), files)
	}
}
