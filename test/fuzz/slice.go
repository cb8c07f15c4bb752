// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// outcome is the result of fuzzing one target for a while.
type outcome struct {
	executions int64
	entries    int           // inputs that the engine added to the working corpus
	cpu        time.Duration // of all processes
	finding    string        // empty, or the failing input, or the reason of a failure without one
	output     string
}

// fuzz runs the engine on a target until the limit: a duration or, with the suffix x, a number of executions.
func fuzz(ctx context.Context, prefix []string, binary string, t target, cache, limit string) (outcome, error) {
	// Minimising an interesting input takes no longer than 10 executions, so that slices end in time.
	argv := slices.Concat(prefix, []string{
		binary, "-test.run", "^$", "-test.fuzz", t.pattern(), "-test.fuzztime", limit, "-test.fuzzminimizetime", "10x", "-test.fuzzcachedir", cache,
	})
	out, cpu, err := execute(ctx, t.dir, argv)
	o := parseOutput(out, err != nil && ctx.Err() == nil)
	o.cpu = cpu
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && ctx.Err() == nil {
		return o, err
	}
	return o, nil
}

// execute runs a command in a directory until it ends or ctx does, and returns its output and the CPU time of its processes.
func execute(ctx context.Context, dir string, argv []string) (string, time.Duration, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	// The engine ends its workers when it is interrupted.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 20 * time.Second
	// The terminal's interrupt reaches this program only, which passes it on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	var cpu time.Duration
	if s := cmd.ProcessState; s != nil {
		cpu = s.UserTime() + s.SystemTime()
	}
	return string(out), cpu, err
}

var (
	progressLine = regexp.MustCompile(`(?m)^fuzz: elapsed: .*, execs: (\d+) \(.*\), new interesting: (\d+) \(total: \d+\)$`)
	failingInput = regexp.MustCompile(`(?m)^\s*(?:Failing input written to |failure while testing seed corpus entry: )(\S+)`)
)

// parseOutput reads the output of the engine.
func parseOutput(out string, failed bool) outcome {
	o := outcome{output: out}
	if all := progressLine.FindAllStringSubmatch(out, -1); len(all) > 0 {
		last := all[len(all)-1]
		o.executions, _ = strconv.ParseInt(last[1], 10, 64)
		o.entries, _ = strconv.Atoi(last[2])
	}
	if !failed {
		return o
	}
	switch m := failingInput.FindStringSubmatch(out); {
	case m != nil:
		o.finding = m[1]
	// The engine sometimes takes the end of its own time limit for a failure (go.dev/issue/75804).
	case !strings.Contains(out, "context deadline exceeded"):
		o.finding = "failed without a failing input"
	}
	return o
}

// saveFinding writes the output that belongs to a finding to a file, and returns its name.
func saveFinding(dir string, t target, output string) (string, error) {
	file := filepath.Join(dir, strings.ReplaceAll(t.String(), "/", ".")+".txt")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return file, os.WriteFile(file, []byte(output), 0o644)
}
