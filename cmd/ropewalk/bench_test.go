// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/bench"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

// benchEnv makes a child process of this test binary run ropewalk: see TestBenchProcess.
const benchEnv = "ROPEWALK_TEST_BENCH"

// TestBenchProcess is not a test: it runs ropewalk with the arguments after --.
func TestBenchProcess(t *testing.T) {
	if os.Getenv(benchEnv) == "" {
		t.Skip("run by the tests of the benchmark")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	root := newRootCmd()
	root.SetArgs(os.Args[slices.Index(os.Args, "--")+1:])
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err) // for the process that reads the result from standard output
		t.FailNow()
	}
}

// benchWith returns options for a short run whose processes are this binary. It skips the test without privileges.
func benchWith(t *testing.T) benchOptions {
	t.Helper()
	err := testbed.Probe()
	if errors.Is(err, netlab.ErrPrivileges) || errors.Is(err, os.ErrNotExist) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(benchEnv, "1")
	prefix := "t" + strings.ToLower(rand.Text()[:10])
	children := benchChildren(t)
	t.Cleanup(func() {
		for _, dir := range []string{"/run/netns", "/run/ropewalk/netlab"} {
			if left, err := filepath.Glob(filepath.Join(dir, prefix+"-*")); err != nil || len(left) > 0 {
				t.Errorf("the benchmark left %v, %v", left, err)
			}
		}
		// Children from before the test are not its own.
		for _, pid := range benchChildren(t) {
			if !slices.Contains(children, pid) {
				t.Errorf("the benchmark left process %s", pid)
			}
		}
	})
	return benchOptions{
		seconds: 0.1, quick: true, lanes: []int{2}, json: "-", prefix: prefix,
		self: []string{"/proc/self/exe", "-test.run=^TestBenchProcess$", "--"},
	}
}

// benchChildren returns the running child processes of this one.
func benchChildren(t *testing.T) (pids []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil {
			pids = append(pids, strings.Fields(string(text))...)
		}
	}
	slices.Sort(pids)
	return pids
}

func TestBenchMeasuresAllStagesAndCleansUp(t *testing.T) {
	o := benchWith(t)
	o.plots = filepath.Join(t.TempDir(), "plots")
	var out, progress bytes.Buffer
	if err := benchMain(t.Context(), &out, &progress, o); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	var r bench.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	checkReport(t, &r)
	if n := strings.Count(progress.String(), "\n"); n != len(bench.Stages()) {
		t.Errorf("got %d lines of progress, want one for each stage:\n%s", n, progress.String())
	}
	plots, err := filepath.Glob(filepath.Join(o.plots, "*.svg"))
	if err != nil || len(plots) < 8 {
		t.Errorf("plots: got %v, error %v, want no error", plots, err)
	}
	for _, path := range plots {
		checkXML(t, path)
	}
}

// checkReport checks that all stages have figures, and that figures are positive unless they may be 0.
func checkReport(t *testing.T, r *bench.Report) {
	t.Helper()
	if r.Schema != bench.Schema || r.Verdict == nil || r.Verdict.Best.Gbps <= 0 || r.Version == "" {
		t.Errorf("got %+v", r)
	}
	stages := map[string]int{}
	for _, f := range r.Figures {
		stages[f.Stage]++
		// On a busy machine even the lowest rate loses packets, and a daemon may not wake up at all.
		if mayBeZero := f.Name == "ndr64" || f.Name == "wakeups"; f.Error != "" || f.Value < 0 || f.Value == 0 && !mayBeZero {
			t.Errorf("got %+v", f)
		}
	}
	for _, s := range bench.Stages() {
		if stages[s] == 0 {
			t.Errorf("no figures of stage %s", s)
		}
	}
}

func checkXML(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := xml.NewDecoder(f); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: got error %v, want none", path, err)
		}
	}
}

// cancelWhen is a writer that calls cancel when text is written to it.
type cancelWhen struct {
	text   string
	cancel func()
}

func (c cancelWhen) Write(p []byte) (int, error) {
	if strings.Contains(string(p), c.text) {
		c.cancel()
	}
	return len(p), nil
}

func TestBenchCleansUpWhenInterrupted(t *testing.T) {
	o := benchWith(t)
	o.seconds, o.only = 60, []string{bench.StageTunnel}
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	err := benchMain(ctx, &out, cancelWhen{bench.StageTunnel, cancel}, o)
	if !errors.Is(err, context.Canceled) || out.Len() != 0 {
		t.Errorf("err = %v, output %q", err, out.String())
	}
}

func TestBenchRejectsInvalidOptions(t *testing.T) {
	good := benchOptions{seconds: 1}
	for name, change := range map[string]func(*benchOptions){
		"no time":           func(o *benchOptions) { o.seconds = 0 },
		"too little time":   func(o *benchOptions) { o.seconds = 0.01 },
		"lanes twice":       func(o *benchOptions) { o.lanes = []int{2, 1, 2} },
		"missing directory": func(o *benchOptions) { o.json = filepath.Join(t.TempDir(), "missing", "x.json") },
		"a directory":       func(o *benchOptions) { o.json = t.TempDir() },
		"an unknown stage":  func(o *benchOptions) { o.only = []string{"disk"} },
		"no lanes":          func(o *benchOptions) { o.lanes = []int{0} },
		"too many lanes":    func(o *benchOptions) { o.lanes = []int{1, 10000} },
	} {
		o := good
		change(&o)
		var usage usageError
		if err := benchMain(t.Context(), io.Discard, io.Discard, o); !errors.As(err, &usage) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

func TestOnlyCryptoStageNeedsNoRoot(t *testing.T) {
	if (benchOptions{only: []string{bench.StageCrypto}}).needsRoot() || !(benchOptions{}).needsRoot() ||
		!(benchOptions{only: []string{bench.StageCrypto, bench.StageRaw}}).needsRoot() {
		t.Error("needsRoot is wrong for a stage")
	}
}

func TestBenchReportHasCommandThatRepeatsIt(t *testing.T) {
	cmd := newBenchCmd()
	if err := cmd.ParseFlags([]string{"--quick", "--lanes", "1,4", "--only", "crypto,tun", "--json", "x", "--plots", "y"}); err != nil {
		t.Fatal(err)
	}
	if got, want := benchCommand(cmd), "sudo ropewalk bench --quick --only crypto,tun --lanes 1,4"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBenchProgressIsOneLineOnTerminal(t *testing.T) {
	var b bytes.Buffer
	live := &benchProgress{out: &b, tty: true}
	live.show(bench.Progress{Stage: "tun", What: "write", Done: 4, Total: 20})
	live.show(bench.Progress{Stage: "tun", What: "read", Done: 5, Total: 20})
	live.clear()
	if got := b.String(); strings.Contains(got, "\n") || !strings.Contains(got, "[ 6/20] tun: read") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("got %q, want no %q in it", got, "\n")
	}
}
