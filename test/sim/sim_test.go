// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

var (
	seeds    = flag.Int("seeds", 60, "number of seeds to simulate; a fifth of it with -short")
	first    = flag.Uint64("first", 1, "the first seed")
	file     = flag.String("schedule", "", "run this schedule only")
	tries    = flag.Int("tries", 3, "runs of a schedule before it counts as passing, while a failing one is shrunk")
	shrinks  = flag.Int("shrinks", 150, "the most runs to shrink a failing schedule, 0 for none")
	stop     = flag.Bool("stop", false, "simulate one seed after the other, and stop at the first that fails")
	trace    = flag.Bool("trace", false, "print each datagram")
	saveInto = flag.String("save", "", "directory for failing schedules; empty for the system's")
)

// TestSeedsHoldInvariants simulates the schedules of a fixed set of seeds.
func TestSeedsHoldInvariants(t *testing.T) {
	if *file != "" {
		t.Skip("-schedule is set")
	}
	n := uint64(*seeds)
	if testing.Short() {
		n /= 5
	}
	for seed := *first; seed < *first+n; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			if !*stop {
				t.Parallel()
			}
			check(t, generate(seed))
		})
		if *stop && t.Failed() {
			return
		}
	}
}

// TestScheduleHoldsInvariants runs the regression schedules in testdata, or the one of the flag -schedule.
func TestScheduleHoldsInvariants(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.schedule") // the pattern is valid
	if *file != "" {
		files = []string{*file}
	}
	if len(files) == 0 {
		t.Fatal("no schedules in testdata")
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			s, err := parseSchedule(text)
			if err != nil {
				t.Fatal(err)
			}
			check(t, s)
		})
	}
}

// check runs a schedule, and reports a shrunk one if it fails.
func check(t *testing.T, s *schedule) {
	t.Helper()
	found := run(t, s)
	if len(found) == 0 {
		return
	}
	for _, v := range found {
		t.Error(v.text)
	}
	small := shrink(s, func(c *schedule) bool { return failsAlike(t, c, found[0].kind) }, *shrinks)
	t.Errorf("seed %d: %d of %d events are enough. Run it again with: go test ./test/sim -run TestSchedule -schedule %s\n%s",
		s.Seed, len(small.Events), len(s.Events), save(t, small), small.encode())
}

// failsAlike reports whether a schedule violates the same invariant. Goroutines that race may need several tries.
func failsAlike(t *testing.T, s *schedule, kind string) bool {
	for range *tries {
		if slices.ContainsFunc(run(t, s), func(v violation) bool { return v.kind == kind }) {
			return true
		}
	}
	return false
}

func save(t *testing.T, s *schedule) (name string) {
	t.Helper()
	f, err := os.CreateTemp(*saveInto, "sim-*.schedule")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(s.encode()); err != nil {
		t.Error(err)
	}
	return f.Name()
}

func TestSchedulesSurviveEncoding(t *testing.T) {
	for seed := range uint64(50) {
		want := generate(seed).encode()
		got, err := parseSchedule(want)
		if err != nil || string(got.encode()) != string(want) {
			t.Fatalf("seed %d: got %s, error %v, want %s", seed, got.encode(), err, want)
		}
	}
	for _, text := range []string{`{"hosts":2}{"do":"nothing","a":1}`, `{"hosts":2}{"do":"send","a":3}`, `{"host":2}`, ``} {
		if _, err := parseSchedule([]byte(text)); err == nil {
			t.Errorf("%q was parsed", text)
		}
	}
}

// TestMutantsApply finds patches that the sources have left behind: only `make sim-mutants` applies them.
func TestMutantsApply(t *testing.T) {
	files, err := filepath.Glob("mutants/*.patch")
	if err != nil || len(files) < 20 {
		t.Fatalf("got %d patches, error %v, want at least 20", len(files), err)
	}
	for _, name := range files {
		out, err := exec.Command("patch", "--dry-run", "--directory=../..", "--strip=1", "--input="+filepath.Join("test/sim", name)).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip(err)
		}
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// TestShrinkKeepsWhatFails has a schedule that fails because of two of its events.
func TestShrinkKeepsWhatFails(t *testing.T) {
	s := &schedule{Hosts: 2}
	for i := range 40 {
		s.Events = append(s.Events, event{Do: fmt.Sprint(i)})
	}
	fails := func(c *schedule) bool {
		return slices.Contains(c.Events, event{Do: "7"}) && slices.Contains(c.Events, event{Do: "31"})
	}
	small := shrink(s, fails, 1000)
	if len(small.Events) != 2 || !fails(small) {
		t.Errorf("got %s, want events 7 and 31", small.encode())
	}
}
