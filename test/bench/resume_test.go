// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func saveReport(t *testing.T, r *report) string {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// nextReport is what a run begins with that is to go on from exampleReport.
func nextReport() *report {
	old := exampleReport()
	return &report{
		Tests: old.Tests, Versions: old.Versions, Seconds: old.Seconds, Queues: old.Queues, Machine: old.Machine, Rounds: 2,
	}
}

func TestRunResumesFromSavedRounds(t *testing.T) {
	r := nextReport()
	if err := r.resume(saveReport(t, exampleReport())); err != nil {
		t.Fatal(err)
	}
	if r.Whole != 3 || r.Rounds != 5 {
		t.Errorf("%d earlier rounds, %d in all", r.Whole, r.Rounds)
	}
	if d := cmp.Diff(exampleReport().Samples, r.Samples); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestInterruptedRoundIsRepeated(t *testing.T) {
	old := exampleReport()
	old.Whole, old.Samples = 2, old.Samples[:len(old.Samples)-1]
	r := nextReport()
	if err := r.resume(saveReport(t, old)); err != nil {
		t.Fatal(err)
	}
	if r.Whole != 2 || r.Rounds != 4 || len(r.Samples) == 0 || r.Samples[len(r.Samples)-1].Round != 2 {
		t.Errorf("%d whole rounds of %d, %d samples", r.Whole, r.Rounds, len(r.Samples))
	}
}

func TestReportFileIsReplacedAtomically(t *testing.T) {
	path := saveReport(t, exampleReport())
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	earlier, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer earlier.Close()
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(replaceFile(path, []byte("{}")), os.Symlink(path, link), replaceFile(link, []byte("[]"))); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(earlier); err != nil || !bytes.Equal(want, text) {
		t.Errorf("reading the open old file: got %q, %v", text, err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "[]" {
		t.Errorf("%q, %v", text, err)
	}
	if left, err := filepath.Glob(path + "*"); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestResumeWithoutReportStartsFromScratch(t *testing.T) {
	r := nextReport()
	if err := r.resume(filepath.Join(t.TempDir(), "none.json")); err != nil || r.Rounds != 2 || len(r.Samples) != 0 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestResumeRejectsIncompatibleReport(t *testing.T) {
	path := saveReport(t, exampleReport())
	for name, change := range map[string]func(*report){
		"tests":    func(r *report) { r.Tests = r.Tests[1:] },
		"programs": func(r *report) { r.Versions = map[string]string{ropewalkName: "v0.2.0"} },
		"seconds":  func(r *report) { r.Seconds = 9 },
		"queues":   func(r *report) { r.Queues++ },
		"machines": func(r *report) { r.Machine.Kernel = "6.18.6" },
	} {
		r := nextReport()
		change(r)
		if r.resume(path) == nil || len(r.Samples) != 0 {
			t.Errorf("those of other %s are", name)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if nextReport().resume(path) == nil {
		t.Error("half a report is taken")
	}
}
