// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// comparer is one run of the program, with all that it needs installed.
type comparer struct {
	options
	out, diag io.Writer
	rows      []row
	live      *liveTable
	progress  *progress
	argv      map[string][]string
	report    report
}

// prepare finds out early what would otherwise end a run of an hour: no right to make namespaces, no place for the table.
func prepare(ctx context.Context, o options, out, diag io.Writer) (*comparer, error) {
	c := &comparer{options: o, out: out, diag: diag, rows: rows(o.measures), progress: &progress{out: diag}}
	c.live = newLiveTable(out, c.rows)
	if o.update != "" {
		if err := updateFile(o.update, o.table, nil); err != nil {
			return nil, err
		}
	}
	if err := mayMakeLabs(); err != nil {
		return nil, err
	}
	version, err := programVersion(ctx, o.ropewalk)
	if err != nil {
		return nil, err
	}
	if err := c.installPeers(ctx); err != nil {
		return nil, err
	}
	c.report = report{
		Date: time.Now(), Machine: thisMachine(), Rounds: o.rounds, Seconds: o.stretch.Seconds(), Queues: o.queues,
		Tests: measureNames(o.measures), Versions: map[string]string{ropewalkName: version},
	}
	for _, p := range c.peers {
		c.report.Versions[p.name] = p.version
	}
	if o.more {
		if err := c.report.resume(o.json); err != nil {
			return nil, err
		}
	}
	return c, c.save()
}

func mayMakeLabs() error {
	lab, err := netlab.New("bench")
	if err != nil {
		return err
	}
	return lab.Close()
}

// programVersion asks ropewalk, and so proves that it is there.
func programVersion(ctx context.Context, path string) (string, error) {
	text, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version (make build makes bin/ropewalk): %w", path, err)
	}
	return strings.TrimPrefix(strings.TrimSpace(string(text)), "ropewalk version "), nil
}

// installPeers leaves in c.peers the peers that can be measured, and in c.argv their commands.
func (c *comparer) installPeers(ctx context.Context) error {
	in, err := newInstaller(c.installDir, c.diag)
	if err != nil {
		return err
	}
	wanted := len(c.peers)
	if c.peers, err = in.installAll(ctx, c.peers); err != nil {
		return err
	}
	if wanted > 0 && len(c.peers) == 0 {
		return errors.New("no peer could be installed")
	}
	ropewalk, err := filepath.Abs(c.ropewalk)
	if err != nil {
		return fmt.Errorf("finding ropewalk: %w", err)
	}
	c.ropewalk = ropewalk
	if c.quic, err = findProgram(c.quic); err != nil {
		return err
	}
	c.argv = map[string][]string{ropewalkName: {ropewalk, "run"}}
	for _, p := range c.peers {
		c.argv[p.name] = p.argv(in.dir)
	}
	return nil
}

// findProgram returns the absolute path of an optional program; empty if there is none.
func findProgram(path string) (string, error) {
	if !isExecutable(path) {
		return "", nil
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("finding %s: %w", path, err)
	}
	return abs, nil
}

// measure takes all rounds.
func (c *comparer) measure(ctx context.Context) error {
	plan, tests := turns(c.report.Rounds, peerNames(c.peers), c.raw), measureNames(c.measures)
	plan = slices.DeleteFunc(plan, func(t turn) bool { return t.round <= c.report.Whole })
	guess := func(test string) time.Duration { return guessDuration(test, c.stretch) }
	c.progress = &progress{
		out: c.diag, terminal: onTerminal(c.diag), rounds: c.report.Rounds, last: time.Now(), clock: newClock(plan, tests, guess),
	}
	o := opener{
		queues: c.queues, stretch: c.stretch, traffic: []string{c.ropewalk, "traffic"}, argv: c.argv, measures: c.measures,
		quic: c.quic,
	}
	r := runner{
		turns: plan, tests: tests, open: o.open,
		before: c.progress.before, after: c.progress.after, found: c.found, whole: c.whole, warn: c.warn,
	}
	return r.run(ctx)
}

func (c *comparer) found(s sample) error {
	if s.Error != "" {
		c.warn(fmt.Errorf("%s, %s: %s", s.Implementation, s.Test, s.Error))
	}
	c.live.add(s)
	c.report.Samples = append(c.report.Samples, s)
	return c.save()
}

func (c *comparer) whole(round int) error {
	c.report.Whole = round
	return c.save()
}

func (c *comparer) warn(err error) {
	c.progress.clear()
	fmt.Fprintf(c.diag, "%v\n", err)
}

// save writes what is known so far, so that no end of the program loses it.
func (c *comparer) save() error {
	if c.json == "" {
		return nil
	}
	text, err := json.MarshalIndent(&c.report, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	if err := replaceFile(c.json, append(text, '\n')); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// replaceFile replaces a regular file atomically, by a temporary file and a rename. It writes directly to others, such as
// /dev/stdout.
func replaceFile(path string, text []byte) error {
	if st, err := os.Lstat(path); err == nil && !st.Mode().IsRegular() {
		return os.WriteFile(path, text, 0o644)
	}
	next := path + ".new"
	if err := os.WriteFile(next, text, 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// finish prints the table, and puts it into the document if it is complete.
func (c *comparer) finish(complete bool) error {
	names := peerNames(c.peers)
	lines := c.report.summarize(withDrops(c.rows, c.report.Samples), names)
	if len(lines) == 0 {
		fmt.Fprintln(c.diag, "no figures, and so no table")
		return nil
	}
	fmt.Fprintln(c.out)
	if err := writeText(c.out, lines, names); err != nil {
		return err
	}
	if !complete || c.update == "" {
		return nil
	}
	what := make(map[string]string)
	for _, m := range c.measures {
		what[m.Name] = m.What
	}
	if err := updateFile(c.update, c.table, c.report.markdown(lines, c.peers, what)); err != nil {
		return err
	}
	fmt.Fprintf(c.diag, "%s has the new table\n", c.update)
	return nil
}
