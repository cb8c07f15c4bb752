// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func read(console string) *results {
	r := newResults()
	_ = readLines(strings.NewReader(console), r.Line)
	return r
}

const goodRun = "Linux boots\r\n\r\nropewalk-vm-step: p\r\n" +
	"\x16=== RUN   TestA\r\n\x16=== RUN   TestA/one\r\nlog\x16--- PASS: TestA (0.10s)\r\n    \x16--- PASS: TestA/one (0.05s)\r\n" +
	"\x16=== RUN   TestB\n\x16--- SKIP: TestB (0.00s)\n" +
	"\nropewalk-vm-exit: 0\r\n"

func TestResultsAreParsedFromConsole(t *testing.T) {
	r := read(goodRun)
	want := map[string]string{"p.TestA": passed, "p.TestA/one": passed, "p.TestB": skipped}
	if d := cmp.Diff(want, r.outcome); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := r.Err(); err != nil {
		t.Errorf("a good run: %v", err)
	}
}

func TestOnlyCompleteRunWithoutFailuresPasses(t *testing.T) {
	for _, tc := range []struct{ name, console, want string }{
		{"a failed test", strings.Replace(goodRun, "PASS: TestA ", "FAIL: TestA ", 1), "failed: p.TestA"},
		{"a test that did not end", strings.Replace(goodRun, "\x16--- PASS: TestA (0.10s)", "", 1), "failed: p.TestA"},
		{"a machine that died", strings.TrimSuffix(goodRun, "ropewalk-vm-exit: 0\r\n"), errNoMarker.Error()},
		{"a truncated marker", strings.TrimSuffix(goodRun, " 0\r\n"), errNoMarker.Error()},
		{"a step that failed", strings.Replace(goodRun, "exit: 0", "exit: 2", 1), "exit code 2"},
		{"no tests", "ropewalk-vm-exit: 0\n", "no test ran"},
		{"results printed by a test", "--- PASS: TestX (0.00s)\nropewalk-vm-exit: 0\n", "no test ran"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := read(tc.console).Err(); err == nil || err.Error() != tc.want {
				t.Errorf("Err() = %v, want %s", err, tc.want)
			}
		})
	}
}

func TestTableShowsOnlySubtestsThatDidNotPass(t *testing.T) {
	bad := strings.Replace(strings.Replace(goodRun, "PASS: TestA/one", "FAIL: TestA/one", 1), "PASS: TestA ", "FAIL: TestA ", 1)
	by := map[string]*results{"6.1": read(goodRun), "7.2": read(bad)}
	want := `test         6.1         7.2         9.9
p.TestA      pass 0.10s  FAIL 0.10s  -
p.TestA/one  pass 0.05s  FAIL 0.05s  -
p.TestB      skip 0.00s  skip 0.00s  -
`
	if d := cmp.Diff(want, table([]string{"6.1", "7.2", "9.9"}, by)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := table([]string{"6.1"}, by); strings.Contains(got, "one") {
		t.Errorf("a passed subtest is shown:\n%s", got)
	}
}

func TestTailDropsControlCharacters(t *testing.T) {
	r := read(strings.Repeat("x\n", 500) + "\x1b[2Jlast\a\r\n")
	if n := strings.Count(r.Tail(), "\n") + 1; n != tailLines || !strings.HasSuffix(r.Tail(), "\n[2Jlast") {
		t.Errorf("%d lines, end %q", n, r.Tail()[len(r.Tail())-20:])
	}
}

func TestMissingToolsAreNamedByPackage(t *testing.T) {
	nothing := func(string) (string, error) { return "", errors.New("not found") }
	want := []string{"qemu-system-x86", "busybox-static", "xz-utils", "zstd", "nftables", "iproute2", "wireguard-tools", "dpkg", "apt", "golang-go"}
	if d := cmp.Diff(want, missingTools(nothing)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := missingTools(func(s string) (string, error) { return s, nil }); got != nil {
		t.Errorf("missing %v although all tools exist", got)
	}
}

// TestMakefileInstallsRequiredTools leaves out apt and go, which make needs anyway.
func TestMakefileInstallsRequiredTools(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile(`(?m)^deps-kernels:.*\n\t\$\(call apt_install,(.*)\)$`).FindStringSubmatch(string(text))
	if rule == nil {
		t.Fatal("the Makefile has no target deps-kernels with apt_install")
	}
	installed := strings.Fields(rule[1])
	for _, tool := range tools {
		if !slices.Contains([]string{"apt", "golang-go"}, tool.pkg) && !slices.Contains(installed, tool.pkg) {
			t.Errorf("make deps-kernels does not install %s, which has %s", tool.pkg, tool.name)
		}
	}
}

func FuzzResults(f *testing.F) {
	f.Add(goodRun)
	f.Add("\x16--- FAIL: TestX (1.00s)\nropewalk-vm-exit: 99999999999999999999\n")
	f.Fuzz(func(t *testing.T, console string) {
		r := read(console)
		_ = r.Err()
		_ = table([]string{"k"}, map[string]*results{"k": r})
		if strings.ContainsRune(r.Tail(), '\x1b') {
			t.Error("an escape character got through")
		}
	})
}

func TestTestsSkippedOnEveryKernelAreReported(t *testing.T) {
	run := func(step string, lines ...string) *results {
		return read("ropewalk-vm-step: " + step + "\n" + strings.Join(lines, "\n") + "\nropewalk-vm-exit: 0\n")
	}
	both := []string{"\x16=== RUN   TestA", "\x16=== RUN   TestA/wg0", "    \x16--- SKIP: TestA/wg0 (0.00s)", "\x16--- PASS: TestA (0.00s)"}
	ran := []string{"\x16=== RUN   TestA", "\x16=== RUN   TestA/wg0", "    \x16--- PASS: TestA/wg0 (0.00s)", "\x16--- PASS: TestA (0.00s)"}
	for _, tc := range []struct {
		name string
		by   map[string]*results
		want []string
	}{
		{"skipped on both", map[string]*results{"5.10": run("agent", both...), "7.2": run("agent", both...)}, []string{"agent.TestA/wg0"}},
		{"ran on one", map[string]*results{"5.10": run("agent", both...), "7.2": run("agent", ran...)}, nil},
		{"not reached on one", map[string]*results{"5.10": run("agent", both...), "7.2": run("agent")}, []string{"agent.TestA/wg0"}},
		{"one kernel did not boot", map[string]*results{"5.10": run("agent", both...)}, []string{"agent.TestA/wg0"}},
		{"of a package that the host also tests", map[string]*results{"5.10": run("tun", both...)}, nil},
	} {
		if d := cmp.Diff(tc.want, skippedEverywhere([]string{"5.10", "7.2"}, tc.by), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}
