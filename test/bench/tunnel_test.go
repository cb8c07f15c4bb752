// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/test/bench/measure"
)

// needBinary returns the absolute path of a program that the Makefile builds.
func needBinary(t testing.TB, name, target string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if !isExecutable(path) {
		t.Skipf("no %s: make %s", path, target)
	}
	return path
}

func needLabs(t testing.TB) {
	t.Helper()
	err := mayMakeLabs()
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no TUN devices: %v", err)
	}
}

func TestComparisonWithWireguardGoCleansUp(t *testing.T) {
	needLabs(t)
	ropewalk, other := needBinary(t, "ropewalk", "build"), needBinary(t, "wireguard-go", "bin/wireguard-go")
	measures, err := chooseMeasures(measure.Measures(), nil, []string{"tcp1", "rtt_idle", "rss"})
	if err != nil {
		t.Fatal(err)
	}
	o := opener{
		queues: 2, stretch: 300 * time.Millisecond, traffic: []string{ropewalk, "traffic"}, measures: measures,
		argv: map[string][]string{ropewalkName: {ropewalk, "run"}, "wireguard-go": {other, "-f"}},
	}
	var labs []*testbed.Lab
	var rep report
	r := runner{
		turns: turns(1, []string{"wireguard-go"}, true), tests: measureNames(measures),
		open: func(ctx context.Context, i string) (bed, error) {
			b, err := o.open(ctx, i)
			if err == nil {
				labs = append(labs, b.(*tunnel).lab.Lab)
			}
			return b, err
		},
		before: func(step) {}, after: func(step) {}, warn: func(err error) { t.Error(err) },
		found: func(s sample) error { rep.Samples = append(rep.Samples, s); return nil },
		whole: func(int) error { return nil },
	}
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	allMeasured(t, rep.Samples)
	if n := len(rep.summarize(rows(measures), []string{"wireguard-go"})); n != len(rows(measures)) {
		t.Errorf("a table of %d lines for %d tests", n, len(measures))
	}
	if len(labs) != 3 {
		t.Errorf("%d labs", len(labs))
	}
	for _, l := range labs {
		isGone(t, l)
	}
}

func allMeasured(t *testing.T, samples []sample) {
	t.Helper()
	var got []string
	for _, s := range samples {
		got = append(got, s.Implementation+" "+s.Test)
		if !(s.Figures[valueFigure] > 0) {
			t.Errorf("%+v", s)
		}
	}
	want := "raw tcp1, raw rtt_idle, ropewalk tcp1, wireguard-go tcp1, ropewalk rtt_idle, wireguard-go rtt_idle, " +
		"ropewalk rss, wireguard-go rss"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// isGone checks for namespaces, processes and control sockets.
func isGone(t *testing.T, l *testbed.Lab) {
	t.Helper()
	for _, s := range []*testbed.Side{l.A, l.B} {
		paths := []string{s.Host.Path()}
		if s.Iface != "" {
			paths = append(paths, filepath.Join("/var/run/wireguard", s.Iface+".sock"))
		}
		for _, path := range paths {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is still there (%v)", path, err)
			}
		}
	}
	for _, d := range l.Daemons() {
		if pids := d.PIDs(); len(pids) > 0 {
			t.Errorf("processes %v still run", pids)
		}
	}
}
