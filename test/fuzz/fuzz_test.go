// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

const root = "../.."

func TestCommittedCorporaBelongToTargets(t *testing.T) {
	targets, err := discover(root, regexp.MustCompile(""))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, target := range targets {
		known[archiveOf(filepath.Join(root, archives), target)] = true
	}
	err = filepath.WalkDir(filepath.Join(root, archives), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !known[file] {
			t.Errorf("%s belongs to no target", file)
		}
		checkArchive(t, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkArchive checks names and bounds of a committed archive.
func checkArchive(t *testing.T, file string) {
	t.Helper()
	entries, err := readArchive(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() > maxArchive || len(entries) == 0 || len(entries) > maxEntries {
		t.Errorf("%s has %d inputs: want at most %d in %d bytes (%v)", file, len(entries), maxEntries, maxArchive, err)
	}
	for _, e := range entries {
		if e.name != nameOf(e.data) || !bytes.HasPrefix(e.data, []byte("go test fuzz v1\n")) {
			t.Errorf("%s: %s is no input under the name of its content", file, e.name)
		}
	}
}

func TestOutputGivesCountsAndFailingInput(t *testing.T) {
	const progress = "fuzz: elapsed: 0s, gathering baseline coverage: 0/7 completed\n" +
		"fuzz: elapsed: 3s, execs: 900 (300/sec), new interesting: 2 (total: 9)\n" +
		"fuzz: elapsed: 5s, execs: 1600 (350/sec), new interesting: 4 (total: 11)\n"
	for _, tt := range []struct {
		name, out string
		failed    bool
		want      string
	}{
		{"success", progress + "PASS\n", false, ""},
		{"new input", progress + "--- FAIL: FuzzX (5.02s)\n    Failing input written to testdata/fuzz/FuzzX/771e938e4458e983\n", true, "testdata/fuzz/FuzzX/771e938e4458e983"},
		{"seed", progress + "failure while testing seed corpus entry: FuzzX/seed#3\n", true, "FuzzX/seed#3"},
		{"end of the engine's own time", progress + "--- FAIL: FuzzX (5.02s)\n    context deadline exceeded\nFAIL\n", true, ""},
		{"death", progress + "panic: in an init function\n", true, "failed without a failing input"},
	} {
		o := parseOutput(tt.out, tt.failed)
		if o.executions != 1600 || o.entries != 4 || o.finding != tt.want {
			t.Errorf("%s: got %d executions, %d new inputs, finding %q, want 1600, 4, %q", tt.name, o.executions, o.entries, o.finding, tt.want)
		}
	}
}

func TestArchiveReturnsEntriesAndStaysWithinBounds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deep", "FuzzX.txtar")
	var kept []entry
	for i := range 1000 {
		data := []byte("go test fuzz v1\n[]byte(\"" + strings.Repeat("a", i) + "\")\n")
		if e := (entry{nameOf(data), data}); fits(kept, e) {
			kept = append(kept, e)
		}
	}
	if fits(nil, entry{data: make([]byte, maxEntry+1)}) {
		t.Error("an input that is too large fits")
	}
	if err := writeArchive(file, kept); err != nil {
		t.Fatal(err)
	}
	got, err := readArchive(file)
	if err != nil || !reflect.DeepEqual(got, kept) {
		t.Errorf("got %d inputs, error %v, want %d, no error", len(got), err, len(kept))
	}
	checkArchive(t, file)
	corpus := t.TempDir()
	if err := unpack(file, corpus); err != nil {
		t.Fatal(err)
	}
	if unpacked, err := readCorpus(corpus); err != nil || len(unpacked) != len(kept) {
		t.Errorf("unpacked %d inputs, error %v, want %d, no error", len(unpacked), err, len(kept))
	}
	if err := writeArchive(file, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := readArchive(file); err != nil || got != nil {
		t.Errorf("an empty corpus: got %v, error %v, want no archive", got, err)
	}
}

func TestTimeIsSharedByWeight(t *testing.T) {
	light, heavy := target{"pkg/lab/traffic", "FuzzMessage"}, target{"test/compare", "FuzzSameDecision"}
	r := &runner{targets: []target{light, heavy}, totals: &totals{Targets: map[string]*total{}}}
	for range 70 {
		r.totals.of(r.next()).add(outcome{}, time.Second)
	}
	if got, want := r.totals.of(heavy).Given, 60*time.Second; got != want {
		t.Errorf("the target of weight 6 had %v of 70s, want %v", got, want)
	}
}

func TestCoverageCountsNewFrequenciesAsNews(t *testing.T) {
	at := func(seen uint64) coverage { return coverage{{"a.go", 1, 1}: {3, seen}, {"a.go", 5, 1}: {1, 0}} }
	c := coverage{}
	for i, tt := range []struct {
		c     coverage
		grown bool
	}{{at(0), false}, {at(1), true}, {at(1), false}, {at(4), true}, {at(5), false}} {
		if got := c.add(tt.c); got != tt.grown {
			t.Errorf("profile %d: grown %v, want %v", i, got, tt.grown)
		}
	}
	if got := c.share(); got != 0.75 {
		t.Errorf("got a share of %v, want 0.75", got)
	}
}

// module has a fuzz target that fails for the input BUG.
var module = map[string]string{
	"go.mod":      "module example.com/it\n\ngo 1.26\n",
	"test/doc.go": "package test\n",
	"pkg/it/it.go": `package it

func parse(b []byte) int {
	if len(b) > 2 && b[0] == 'o' && b[1] == 'k' {
		return 1
	}
	return 0
}
`,
	"pkg/it/it_test.go": `package it

import "testing"

func TARGET(f *testing.F) {
	f.Add([]byte("o"))
	f.Fuzz(func(t *testing.T, b []byte) {
		parse(b)
		if string(b) == BUG {
			t.Fatal("the bug")
		}
	})
}
`,
}

func newModule(t *testing.T, bug string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for file, text := range module {
		// The name is not written out: this file would have a target in a string.
		writeFile(t, file, strings.NewReplacer("BUG", bug, "TARGET", "FuzzIt").Replace(text))
	}
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFindingIsKeptAndFailsRun(t *testing.T) {
	newModule(t, `"o"`)
	var diag bytes.Buffer
	err := command(t.Context(), []string{"-hours", "0.1"}, io.Discard, &diag)
	if err == nil || !strings.Contains(diag.String(), "FINDING: pkg/it/FuzzIt fails with FuzzIt/seed#0, again in a second run") {
		t.Errorf("got error %v and\n%s", err, &diag)
	}
	if text, err := os.ReadFile("build/fuzz/findings/pkg.it.FuzzIt.txt"); err != nil || !bytes.Contains(text, []byte("the bug")) {
		t.Errorf("the output of the finding is %q, error %v", text, err)
	}
}

func TestArchiveKeepsOneInputPerCoverage(t *testing.T) {
	newModule(t, `"bug"`)
	const input = "go test fuzz v1\n[]byte(\"ok!\")\n"
	for name, text := range map[string]string{
		"short": input, "long": strings.Replace(input, "!", "longer", 1), "seed": strings.Replace(input, "ok!", "o", 1), "other type": "go test fuzz v1\nint(1)\n",
	} {
		writeFile(t, "build/fuzz/corpus/pkg/it/FuzzIt/"+name, text)
	}
	var out, diag bytes.Buffer
	if err := command(t.Context(), nil, &out, &diag); err != nil {
		t.Fatalf("%v\n%s", err, &diag)
	}
	kept, err := readArchive(archiveOf(archives, target{"pkg/it", "FuzzIt"}))
	if err != nil || len(kept) != 1 || string(kept[0].data) != input {
		t.Errorf("kept %q, error %v, want %q\n%s", kept, err, input, &diag)
	}
	if !strings.Contains(out.String(), "| 0 | 1 | 100 % | 0 |") {
		t.Errorf("the table is\n%s", &out)
	}
}

func TestOnceRunsTargetFromItsArchive(t *testing.T) {
	newModule(t, `"no input that is found by chance"`)
	args, at := []string{"-once", "100x"}, archiveOf(archives, target{"pkg/it", "FuzzIt"})
	data := []byte("go test fuzz v1\n[]byte(\"ok!\")\n")
	for _, tt := range []struct {
		data []byte
		want bool
	}{{data, true}, {bytes.Replace(data, []byte("ok!"), []byte("no input that is found by chance"), 1), false}} {
		if err := writeArchive(at, []entry{{nameOf(tt.data), tt.data}}); err != nil {
			t.Fatal(err)
		}
		if err := command(t.Context(), args, io.Discard, io.Discard); (err == nil) != tt.want {
			t.Errorf("with %q: got error %v, want success: %v", tt.data, err, tt.want)
		}
	}
}

func TestOnceFailsIfAllTargetsAreLeftOut(t *testing.T) {
	t.Chdir(t.TempDir())
	targets := []target{{"test/compare", "FuzzSameAnswers"}, {"pkg/protocol/offload", "FuzzSplitMatchesKernel"}}
	if err := once(t.Context(), options{once: "1x"}, targets, io.Discard); err == nil {
		t.Error("got no error, want one: nothing ran")
	}
}

func TestRunFailsIfCorpusIsNotUpdated(t *testing.T) {
	newModule(t, `"o"`) // a seed
	writeFile(t, "build/fuzz/corpus/pkg/it/FuzzIt/short", "go test fuzz v1\n[]byte(\"ok!\")\n")
	err := command(t.Context(), nil, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "updating the corpus of pkg/it/FuzzIt") {
		t.Errorf("got error %v, want one that names the target", err)
	}
}
