// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/test/bench/result"
	"github.com/ropewalk/ropewalk/test/schema"
)

const (
	docsPath        = "../../docs"
	predictionsPath = docsPath + "/results/predictions.json"
	// predictionsSum is the checksum of the predictions. They stay as they are; new ones get a file of their own.
	predictionsSum = "9c58b043102a561123dd8936186aaa1c54ffd413486dddd610e301798c4c4a87"
)

func TestPredictionsStayAsTheyWere(t *testing.T) {
	text, err := os.ReadFile(predictionsPath)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != predictionsSum {
		t.Errorf("%s has the checksum %s, want %s: predictions were changed after they were made", predictionsPath, got, predictionsSum)
	}
}

func TestResultsPageIsCurrent(t *testing.T) {
	docs := t.TempDir()
	if err := os.CopyFS(docs, os.DirFS(docsPath)); err != nil {
		t.Fatal(err)
	}
	if err := writeResults(docs); err != nil {
		t.Fatal(err)
	}
	files := []string{"dev/predictions.md"}
	for _, target := range targets() {
		files = append(files, "dev/plots/predicted-"+target.Name+".svg")
	}
	for _, name := range files {
		got, errGot := os.ReadFile(filepath.Join(docsPath, name))
		want, errWant := os.ReadFile(filepath.Join(docs, name))
		if errGot != nil || errWant != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/%s is not up to date (%v): run make results", name, errGot)
		}
	}
}

func TestPredictionsAreOrdered(t *testing.T) {
	var p result.Predictions
	if err := readJSON(predictionsPath, &p); err != nil {
		t.Fatal(err)
	}
	for _, target := range targets() {
		for _, direction := range result.Directions() {
			for _, mtu := range target.MTUs {
				for _, cores := range target.Cores {
					row := result.Row{Implementation: result.Ropewalk, Direction: direction, MTU: mtu, Cores: cores, Spread: result.SpreadOn}
					on := p.Find(target.Name, &row)
					row.Spread = result.SpreadOff
					off := p.Find(target.Name, &row)
					if on == nil || off == nil {
						t.Fatalf("%s: no prediction for %+v", target.Name, row)
					}
					if on.Low > on.Expected || on.Expected > on.High || off.Low > off.Expected || off.Expected > off.High {
						t.Errorf("the limits of %+v and %+v are not around the expected value", on, off)
					}
					if on.High > target.Wire || off.High > target.limit(mtu, result.SpreadOff)+0.1 {
						t.Errorf("%+v or %+v exceeds the wire", on, off)
					}
				}
			}
		}
	}
}

func TestPredictionFollowsCosts(t *testing.T) {
	f := committed(t)
	list := targets()[2:3]
	list[0].Cores, list[0].MTUs, list[0].Spread = []int{1, 4}, []int{1420}, []string{result.SpreadOff, result.SpreadOn}
	slow := targets()[2:3]
	slow[0].Cores, slow[0].MTUs, slow[0].Spread = list[0].Cores, list[0].MTUs, list[0].Spread
	slow[0].Cipher = span{4, 4, 4}
	fast, err := predict(&f.costs, &f.check, list, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	worse, err := predict(&f.costs, &f.check, slow, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for i := range fast.Predictions {
		if a, b := fast.Predictions[i], worse.Predictions[i]; a.Expected <= b.Expected {
			t.Errorf("a slower cipher gives %+v instead of %+v", b, a)
		}
	}
}

// sampleResult is a result without a fault.
func sampleResult() result.Result {
	host := result.Host{
		Processor: "p", Cores: 8, Microcode: "1", Kernel: "6.12", NIC: "n", Driver: "d", Firmware: "f", Queues: 8, LinkGbps: 25, Version: "v0.1.0", Arch: "amd64",
		SHA256: strings.Repeat("ab", 32),
	}
	row := func(implementation string, gbps ...float64) result.Row {
		return result.Row{
			Implementation: implementation, Direction: result.Encrypt, MTU: 1420, Spread: result.SpreadOn, Cores: 4, Gbps: gbps, BusyCores: []float64{3.5, 3.6, 3.4},
		}
	}
	return result.Result{
		Target: "zen3-16c-25g", Day: "2026-12-05", By: "somebody", Command: "c", Under: host, Other: host,
		Rows: []result.Row{row(result.Bare, 22, 23, 22.5), row(result.Ropewalk, 12, 13, 12.5)},
	}
}

func TestImplausibleResultsAreRefused(t *testing.T) {
	sample := sampleResult()
	if err := sample.Check(); err != nil {
		t.Fatal(err)
	}
	for want, corrupt := range map[string]func(r *result.Result){
		"day":                  func(r *result.Result) { r.Day = "2026-11-29" },
		"different programs":   func(r *result.Result) { r.Other.SHA256 = strings.Repeat("cd", 32) },
		"SHA-256":              func(r *result.Result) { r.Under.SHA256, r.Other.SHA256 = "ab", "ab" },
		"unknown":              func(r *result.Result) { r.Rows[1].Direction = "both" },
		"no row of ropewalk":   func(r *result.Result) { r.Rows = r.Rows[:1] },
		"want at least 3":      func(r *result.Result) { r.Rows[1].Gbps = []float64{12, 13} },
		"of nothing":           func(r *result.Result) { r.Rows[1].Gbps[0] = 0 },
		"too far":              func(r *result.Result) { r.Rows[1].Gbps[0] = 2 },
		"of a host that has 8": func(r *result.Result) { r.Rows[1].Cores = 9 },
		"cores busy of 4":      func(r *result.Result) { r.Rows[1].BusyCores[0] = 5 },
		"through a link":       func(r *result.Result) { r.Rows[0].Gbps[0] = 26 },
		"no row of the bare":   func(r *result.Result) { r.Rows[0].MTU = 8920 },
		"more than the 15.0":   func(r *result.Result) { r.Rows[0].Gbps, r.Rows[1].Gbps = []float64{15, 15, 15}, []float64{16, 17, 16} },
	} {
		r := sampleResult()
		corrupt(&r)
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}

// document returns the text of a result as contributors send it.
func document(t *testing.T, r *result.Result) []byte {
	t.Helper()
	text, err := r.JSON()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestSchemaOfResults(t *testing.T) {
	sample := sampleResult()
	documents := []string{string(document(t, &sample))}
	paths, err := filepath.Glob(docsPath + "/results/*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, string(text))
	}
	schema.Check(t, docsPath+"/schemas", result.Kind, result.Result{}, documents...)
}

// resultWriter returns a directory of results, and a function that writes one, in the directory of its target.
func resultWriter(t *testing.T) (dir string, write func(name string, r *result.Result)) {
	t.Helper()
	dir = t.TempDir()
	return dir, func(name string, r *result.Result) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, r.Target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, r.Target, name), document(t, r), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestResultsOfOneNameAreTwo has a contributor who gives the results of all machines one name.
func TestResultsOfOneNameAreTwo(t *testing.T) {
	dir, write := resultWriter(t)
	first, second := sampleResult(), sampleResult()
	second.Target = "c7g.16xlarge"
	write("a.json", &first)
	write("a.json", &second)
	results, err := resultFiles(dir)
	if err != nil || len(results) != 2 {
		t.Fatalf("got %d results, error %v, want both", len(results), err)
	}
	page := resultTable(&result.Predictions{}, results)
	for _, link := range []string{"[a](../results/zen3-16c-25g/a.json)", "[a](../results/c7g.16xlarge/a.json)"} {
		if !strings.Contains(page, link) {
			t.Errorf("the table lacks %s:\n%s", link, page)
		}
	}
}

func TestResultsOfOneVersionHaveOneProgram(t *testing.T) {
	dir, write := resultWriter(t)
	sample := sampleResult()
	write("a.json", &sample)
	results, err := resultFiles(dir)
	if err != nil || len(results) != 1 {
		t.Fatalf("got %d results, error %v, want one and none", len(results), err)
	}
	p := result.Predictions{Predictions: []result.Prediction{{Target: "zen3-16c-25g", Direction: result.Encrypt, MTU: 1420, Spread: result.SpreadOn, Cores: 4, Low: 13, Expected: 15, High: 17}}}
	if got := resultTable(&p, results); !strings.Contains(got, "15 (13–17) | 12.5 | **outside** |") {
		t.Errorf("the table lacks the result beside its prediction:\n%s", got)
	}
	other := sampleResult()
	other.Under.SHA256, other.Other.SHA256 = strings.Repeat("cd", 32), strings.Repeat("cd", 32)
	write("b.json", &other)
	if _, err := resultFiles(dir); err == nil || !strings.Contains(err.Error(), "builds of one version are identical") {
		t.Errorf("got error %v, want one about different programs", err)
	}
}

func TestOtherDocumentsAreNoResults(t *testing.T) {
	dir, write := resultWriter(t)
	sample := sampleResult()
	for _, change := range [][2]string{{result.Kind, "BenchResult"}, {show.APIVersion, "ropewalk/v2"}, {`"by"`, `"bogus"`}} {
		write("a.json", &sample)
		at := filepath.Join(dir, sample.Target, "a.json")
		text := bytes.Replace(document(t, &sample), []byte(change[0]), []byte(change[1]), 1)
		if err := os.WriteFile(at, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := resultFiles(dir); err == nil {
			t.Errorf("%s instead of %s is no error", change[1], change[0])
		}
	}
}
