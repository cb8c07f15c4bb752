// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

const (
	tunPasses  = "ropewalk-vm-step: tun\n\x16=== RUN   TestT\n\x16--- PASS: TestT (0.10s)\n"
	tunEnds    = "\nropewalk-vm-step-end: tun 0\n"
	udpBegins  = "ropewalk-vm-step: udp\n"
	aPasses    = "\x16=== RUN   TestA\n\x16=== RUN   TestA/x\n    \x16--- PASS: TestA/x (0.10s)\n\x16--- PASS: TestA (0.10s)\n"
	bBegins    = "\x16=== RUN   TestB\n\x16=== RUN   TestB/x\n"
	bPasses    = bBegins + "    \x16--- PASS: TestB/x (0.10s)\n\x16--- PASS: TestB (0.10s)\n"
	bPartFails = bBegins + "    \x16--- FAIL: TestB/x (0.10s)\n"
	udpEnds    = "\nropewalk-vm-step-end: udp 0\n\nropewalk-vm-exit: 0\n"
	anOops     = "[   12.000001] BUG: kernel NULL pointer dereference, address: 0\n"
)

var twoSteps = []plan.Step{{Name: "tun", Argv: []string{"/tests/tun"}}, {Name: "udp", Argv: []string{"/tests/udp"}}}

// aBoot is what one boot writes on the console and how it ends.
type aBoot struct {
	console string
	err     error
}

func TestMachineRestartsOnlyAfterStall(t *testing.T) {
	stalled := fmt.Errorf("%w: no sign of life", errStalled)
	udpOnly, skipA := "/tests/udp", "/tests/udp -test.skip=^(TestA)$"
	all := "/tests/tun, /tests/udp"
	for _, tc := range []struct {
		name  string
		boots []aBoot
		want  []string // what each boot had to do
		err   string   // "" for a good run
	}{
		{"no stall", []aBoot{{tunPasses + tunEnds + udpBegins + aPasses + udpEnds, nil}}, []string{all}, ""},
		{
			"a stall in a test",
			[]aBoot{{tunPasses + tunEnds + udpBegins + aPasses + bBegins, stalled}, {udpBegins + bPasses + udpEnds, nil}},
			[]string{all, skipA},
			"",
		},
		{
			"a stall between steps",
			[]aBoot{{tunPasses + tunEnds, stalled}, {udpBegins + aPasses + bPasses + udpEnds, nil}},
			[]string{all, udpOnly},
			"",
		},
		{
			"a stall before a step's end was told",
			[]aBoot{{tunPasses, stalled}, {tunEnds + udpBegins + aPasses + udpEnds, nil}},
			[]string{all, "/tests/tun -test.skip=^(TestT)$, /tests/udp"},
			"",
		},
		{
			"a stall of the boot, twice",
			[]aBoot{{"", stalled}, {"", stalled}, {tunPasses + tunEnds + udpBegins + aPasses + udpEnds, nil}},
			[]string{all, all, all},
			"",
		},
		{
			"three stalls",
			[]aBoot{{tunPasses + tunEnds + udpBegins + bBegins, stalled}, {udpBegins + bBegins, stalled}, {udpBegins + bBegins, stalled}},
			[]string{all, udpOnly, udpOnly},
			"the machine stalled: no sign of life\nfailed: udp.TestB",
		},
		{
			"a stall behind a failed test",
			[]aBoot{{strings.Replace(tunPasses, "PASS", "FAIL", 1) + udpBegins + bBegins, stalled}},
			[]string{all},
			"the machine stalled: no sign of life\nfailed: tun.TestT, udp.TestB",
		},
		{
			"a stall in a test of which a part had failed",
			[]aBoot{{udpBegins + bPartFails, stalled}},
			[]string{all},
			"the machine stalled: no sign of life\nfailed: udp.TestB",
		},
		{
			"a stall behind a failed step",
			[]aBoot{{tunPasses + strings.Replace(tunEnds, "0", "2", 1), stalled}},
			[]string{all},
			"the machine stalled: no sign of life",
		},
		{
			"a stall behind an oops",
			[]aBoot{{tunPasses + tunEnds + anOops, stalled}},
			[]string{all},
			"the machine stalled: no sign of life\nthe kernel broke: BUG: kernel NULL pointer dereference, address: 0",
		},
		{
			"a machine that died",
			[]aBoot{{tunPasses + tunEnds, errNoMarker}},
			[]string{all},
			errNoMarker.Error(),
		},
		{
			"a failed test",
			[]aBoot{{strings.Replace(tunPasses, "PASS", "FAIL", 1) + tunEnds + udpEnds, nil}},
			[]string{all},
			"failed: tun.TestT",
		},
		{
			"an oops that no test noticed",
			[]aBoot{{tunPasses + anOops + tunEnds + udpBegins + aPasses + udpEnds, nil}},
			[]string{all},
			"the kernel broke: BUG: kernel NULL pointer dereference, address: 0",
		},
		{
			"a test that did not come again",
			[]aBoot{{tunPasses + tunEnds + udpBegins + bBegins, stalled}, {udpBegins + "\x16=== RUN   TestB\n" + udpEnds, nil}},
			[]string{all, udpOnly},
			"failed: udp.TestB",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newResults()
			var did []string
			once := func(_ context.Context, steps []plan.Step) error {
				var argv []string
				for _, s := range steps {
					argv = append(argv, strings.Join(s.Argv, " "))
				}
				boot := tc.boots[len(did)]
				did = append(did, strings.Join(argv, ", "))
				_ = readLines(strings.NewReader(boot.console), r.Line)
				return boot.err
			}
			said := 0
			err := runMachine(t.Context(), r, twoSteps, once, func(string, ...any) { said++ })
			if d := cmp.Diff(tc.want, did); d != "" {
				t.Errorf("boots (-want +got):\n%s", d)
			}
			if said != len(did)-1 || r.restarts != said {
				t.Errorf("%d restarts, told of %d, counted %d", len(did)-1, said, r.restarts)
			}
			if got := fmt.Sprint(err); (err == nil) != (tc.err == "") || err != nil && got != tc.err {
				t.Errorf("error %q, want %q", got, tc.err)
			}
		})
	}
}

func TestRestartsStopWhenContextIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	boots := 0
	err := runMachine(ctx, newResults(), twoSteps, func(context.Context, []plan.Step) error {
		boots++
		cancel()
		return errStalled
	}, t.Logf)
	if boots != 1 || !errors.Is(err, errStalled) {
		t.Errorf("%d boots, %v", boots, err)
	}
}

func TestRestartReportsInterruptedTests(t *testing.T) {
	r := read(tunPasses + tunEnds + udpBegins + aPasses + bBegins)
	if d := cmp.Diff([]string{"udp.TestB"}, r.reboot()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	want := map[string]string{"tun.TestT": passed, "udp.TestA": passed, "udp.TestA/x": passed}
	if d := cmp.Diff(want, r.outcome); d != "" {
		t.Errorf("what is kept (-want +got):\n%s", d)
	}
}

func TestFailureIsKeptWhenTestRunsAgain(t *testing.T) {
	r := read(udpBegins + bPartFails + bPasses + udpEnds)
	if err := r.Err(); err == nil || err.Error() != "failed: udp.TestB" {
		t.Errorf("Err() = %v", err)
	}
}

func TestSkipListSurvivesRestart(t *testing.T) {
	first := skipping([]string{"/tests/udp", "-test.v"}, "TestSlow")
	got := strings.Join(skipping(first, "TestA", "TestB"), " ")
	if want := "/tests/udp -test.v -test.skip=^(TestSlow|TestA|TestB)$"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if len(first) != 3 {
		t.Errorf("the first list has changed: %v", first)
	}
}

func TestFailedStepsAreRetriedOnce(t *testing.T) {
	const bFails = bBegins + "    \x16--- FAIL: TestB/x (0.10s)\n\x16--- FAIL: TestB (0.10s)\n"
	const illEnd = "\nropewalk-vm-step-end: udp 1\n\nropewalk-vm-exit: 1\n"
	skipA := "/tests/udp -test.skip=^(TestA)$"
	for _, tc := range []struct {
		name        string
		first, then string
		want        string // what the second machine had to do, "" for no second one
		err         string
	}{
		{"all passes", udpBegins + aPasses + bPasses + udpEnds, "", "", ""},
		{"a test fails, and passes", udpBegins + aPasses + bFails + illEnd, udpBegins + bPasses + udpEnds, skipA, ""},
		{"it fails again", udpBegins + aPasses + bFails + illEnd, udpBegins + bFails + illEnd, skipA, "failed: udp.TestB\nfailed: udp.TestB"},
		{"the binary ends in the middle", udpBegins + aPasses + bBegins + illEnd, udpBegins + bPasses + udpEnds, skipA, ""},
		{"nothing runs again", udpBegins + aPasses + bFails + illEnd, udpBegins + udpEnds, skipA, "failed: udp.TestB\nno test ran"},
		{"the kernel broke", udpBegins + bFails + anOops + "\n" + illEnd, "", "", "the kernel broke: "},
		{"not all was run", udpBegins + bFails, "", "", "failed: udp.TestB"},
	} {
		steps, did := []plan.Step{{Name: "udp", Argv: []string{"/tests/udp"}}}, ""
		feed := func(r *results, console string) {
			for line := range strings.Lines(console) {
				r.Line(strings.TrimSuffix(line, "\n"))
			}
		}
		r := newResults()
		feed(r, tc.first)
		err := onceMore(t.Context(), r, r.Err(), steps, func(_ context.Context, next *results, steps []plan.Step) error {
			did = strings.Join(steps[0].Argv, " ")
			feed(next, tc.then)
			return next.Err()
		}, t.Logf)
		if did != tc.want {
			t.Errorf("%s: ran %q, want %q", tc.name, did, tc.want)
		}
		if got := fmt.Sprint(err); tc.err == "" && err != nil || !strings.HasPrefix(got, tc.err) && tc.err != "" {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.err)
		}
		if tc.want != "" && tc.err == "" && r.outcome["udp.TestB"] != second {
			t.Errorf("%s: TestB is %s", tc.name, r.outcome["udp.TestB"])
		}
	}
}
