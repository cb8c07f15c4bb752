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
	tunPasses    = "ropewalk-vm-step: tun\n\x16=== RUN   TestT\n\x16--- PASS: TestT (0.10s)\n"
	tunEnds      = "\nropewalk-vm-step-end: tun 0\n"
	udpBegins    = "ropewalk-vm-step: udp\n"
	aPasses      = "\x16=== RUN   TestA\n\x16=== RUN   TestA/x\n    \x16--- PASS: TestA/x (0.10s)\n\x16--- PASS: TestA (0.10s)\n"
	bBegins      = "\x16=== RUN   TestB\n\x16=== RUN   TestB/x\n"
	bPasses      = bBegins + "    \x16--- PASS: TestB/x (0.10s)\n\x16--- PASS: TestB (0.10s)\n"
	bPartFails   = bBegins + "    \x16--- FAIL: TestB/x (0.10s)\n"
	udpEnds      = "\nropewalk-vm-step-end: udp 0\n\nropewalk-vm-exit: 0\n"
	aPanic       = "[    0.400001] Kernel panic - not syncing: IO-APIC + timer doesn't work!\n"
	anOops       = "[   12.000001] BUG: kernel NULL pointer dereference, address: 0\n"
	aDoubleFault = "[   92.720781] traps: PANIC: double fault, error_code: 0x0\n[   92.720944] double fault: 0000 [#1] PREEMPT SMP NOPTI\n"
)

var twoSteps = []plan.Step{{Name: "tun", Argv: []string{"/tests/tun"}}, {Name: "udp", Argv: []string{"/tests/udp"}}}

// bootResult is the console output and the error of one boot.
type bootResult struct {
	console string
	err     error
}

func TestMachineRestartsOnlyAfterStallOrFailedBoot(t *testing.T) {
	stalled := fmt.Errorf("%w: no heartbeat", errStalled)
	udpOnly, skipA := "/tests/udp", "/tests/udp -test.skip=^(TestA)$"
	all := "/tests/tun, /tests/udp"
	for _, tc := range []struct {
		name  string
		boots []bootResult
		want  []string // the commands of each boot
		err   string   // "" if the run passes
	}{
		{"no stall", []bootResult{{tunPasses + tunEnds + udpBegins + aPasses + udpEnds, nil}}, []string{all}, ""},
		{
			"a stall in a test",
			[]bootResult{{tunPasses + tunEnds + udpBegins + aPasses + bBegins, stalled}, {udpBegins + bPasses + udpEnds, nil}},
			[]string{all, skipA},
			"",
		},
		{
			"a stall between steps",
			[]bootResult{{tunPasses + tunEnds, stalled}, {udpBegins + aPasses + bPasses + udpEnds, nil}},
			[]string{all, udpOnly},
			"",
		},
		{
			"a stall before the marker of a step's end",
			[]bootResult{{tunPasses, stalled}, {tunEnds + udpBegins + aPasses + udpEnds, nil}},
			[]string{all, "/tests/tun -test.skip=^(TestT)$, /tests/udp"},
			"",
		},
		{
			"a boot that died, and one that panicked",
			[]bootResult{{"", errNoMarker}, {aPanic, errNoMarker}, {tunPasses + tunEnds + udpBegins + aPasses + udpEnds, nil}},
			[]string{all, all, all},
			"",
		},
		{
			"three boots that panicked",
			[]bootResult{{aPanic, errNoMarker}, {aPanic, errNoMarker}, {aPanic, errNoMarker}},
			[]string{all, all, all},
			errNoMarker.Error() + "\nkernel oops: Kernel panic - not syncing: IO-APIC + timer doesn't work!",
		},
		{
			"a stall of the boot, twice",
			[]bootResult{{"", stalled}, {"", stalled}, {tunPasses + tunEnds + udpBegins + aPasses + udpEnds, nil}},
			[]string{all, all, all},
			"",
		},
		{
			"three stalls",
			[]bootResult{{tunPasses + tunEnds + udpBegins + bBegins, stalled}, {udpBegins + bBegins, stalled}, {udpBegins + bBegins, stalled}},
			[]string{all, udpOnly, udpOnly},
			"the machine stalled: no heartbeat\nfailed: udp.TestB",
		},
		{
			"a stall after a failed test",
			[]bootResult{{strings.Replace(tunPasses, "PASS", "FAIL", 1) + udpBegins + bBegins, stalled}},
			[]string{all},
			"the machine stalled: no heartbeat\nfailed: tun.TestT, udp.TestB",
		},
		{
			"a stall in a test with a failed subtest",
			[]bootResult{{udpBegins + bPartFails, stalled}},
			[]string{all},
			"the machine stalled: no heartbeat\nfailed: udp.TestB",
		},
		{
			"a stall after a failed step",
			[]bootResult{{tunPasses + strings.Replace(tunEnds, "0", "2", 1), stalled}},
			[]string{all},
			"the machine stalled: no heartbeat",
		},
		{
			"a stall after an oops",
			[]bootResult{{tunPasses + tunEnds + anOops, stalled}},
			[]string{all},
			"the machine stalled: no heartbeat\nkernel oops: BUG: kernel NULL pointer dereference, address: 0",
		},
		{
			"a double fault of the emulator",
			[]bootResult{
				{tunPasses + tunEnds + udpBegins + bBegins + aDoubleFault + "[   92.720944] RSP: 0018:ff79771dc0277cf0 EFLAGS: 4117f262\n", errNoMarker},
				{udpBegins + bPasses + udpEnds, nil},
			},
			[]string{all, udpOnly},
			"",
		},
		{
			"a breakpoint of the emulator",
			[]bootResult{
				{
					tunPasses + tunEnds + udpBegins + bBegins + "[  695.895263] Oops: int3: 0000 [#1] SMP NOPTI\n" +
						"[  695.896798] Kernel panic - not syncing: Fatal exception in interrupt\n", errNoMarker,
				},
				{udpBegins + bPasses + udpEnds, nil},
			},
			[]string{all, udpOnly},
			"",
		},
		{
			"an oops, and then a double fault of the emulator",
			[]bootResult{{tunPasses + tunEnds + anOops + aDoubleFault + "[   92.720944] RSP: 0018:ff79771dc0277cf0 EFLAGS: 4117f262\n", errNoMarker}},
			[]string{all},
			errNoMarker.Error() + "\nkernel oops: BUG: kernel NULL pointer dereference, address: 0",
		},
		{
			"a double fault of the kernel",
			[]bootResult{{tunPasses + tunEnds + aDoubleFault + "[   92.720944] RSP: 0018:ff79771dc0277cf0 EFLAGS: 00010046\n", errNoMarker}},
			[]string{all},
			errNoMarker.Error() + "\nkernel oops: traps: PANIC: double fault, error_code: 0x0",
		},
		{
			"a machine that died",
			[]bootResult{{tunPasses + tunEnds, errNoMarker}},
			[]string{all},
			errNoMarker.Error(),
		},
		{
			"a failed test",
			[]bootResult{{strings.Replace(tunPasses, "PASS", "FAIL", 1) + tunEnds + udpEnds, nil}},
			[]string{all},
			"failed: tun.TestT",
		},
		{
			"an oops that no test noticed",
			[]bootResult{{tunPasses + anOops + tunEnds + udpBegins + aPasses + udpEnds, nil}},
			[]string{all},
			"kernel oops: BUG: kernel NULL pointer dereference, address: 0",
		},
		{
			"a test that does not end after the restart",
			[]bootResult{{tunPasses + tunEnds + udpBegins + bBegins, stalled}, {udpBegins + "\x16=== RUN   TestB\n" + udpEnds, nil}},
			[]string{all, udpOnly},
			"failed: udp.TestB",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newResults()
			var ran []string
			boot := func(_ context.Context, steps []plan.Step) error {
				var argv []string
				for _, s := range steps {
					argv = append(argv, strings.Join(s.Argv, " "))
				}
				result := tc.boots[len(ran)]
				ran = append(ran, strings.Join(argv, ", "))
				_ = readLines(strings.NewReader(result.console), r.Line)
				return result.err
			}
			logged := 0
			err := runMachine(t.Context(), r, twoSteps, boot, func(string, ...any) { logged++ })
			if d := cmp.Diff(tc.want, ran); d != "" {
				t.Errorf("boots (-want +got):\n%s", d)
			}
			if logged != len(ran)-1 || r.restarts != logged {
				t.Errorf("%d restarts, logged %d, counted %d", len(ran)-1, logged, r.restarts)
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
	if d := cmp.Diff([]string{"udp.TestB"}, r.removeInterrupted()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	want := map[string]string{"tun.TestT": passed, "udp.TestA": passed, "udp.TestA/x": passed}
	if d := cmp.Diff(want, r.outcome); d != "" {
		t.Errorf("outcomes that are kept (-want +got):\n%s", d)
	}
}

func TestFailureIsKeptWhenTestRunsAgain(t *testing.T) {
	r := read(udpBegins + bPartFails + bPasses + udpEnds)
	if err := r.Err(); err == nil || err.Error() != "failed: udp.TestB" {
		t.Errorf("Err() = %v", err)
	}
}

func TestSkipListSurvivesRestart(t *testing.T) {
	first := skipTests([]string{"/tests/udp", "-test.v"}, "TestSlow")
	got := strings.Join(skipTests(first, "TestA", "TestB"), " ")
	if want := "/tests/udp -test.v -test.skip=^(TestSlow|TestA|TestB)$"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(first) != 3 {
		t.Errorf("skipTests changed its argument: got %v, want length 3", first)
	}
}

func TestFailedStepsAreRetriedOnce(t *testing.T) {
	const bFails = bBegins + "    \x16--- FAIL: TestB/x (0.10s)\n\x16--- FAIL: TestB (0.10s)\n"
	const failedEnd = "\nropewalk-vm-step-end: udp 1\n\nropewalk-vm-exit: 1\n"
	skipA := "/tests/udp -test.skip=^(TestA)$"
	for _, tc := range []struct {
		name        string
		first, then string
		want        string // the command of the second machine; "" without a second run
		err         string
	}{
		{"all passes", udpBegins + aPasses + bPasses + udpEnds, "", "", ""},
		{"a test fails, then passes", udpBegins + aPasses + bFails + failedEnd, udpBegins + bPasses + udpEnds, skipA, ""},
		{"a test fails twice", udpBegins + aPasses + bFails + failedEnd, udpBegins + bFails + failedEnd, skipA, "failed: udp.TestB\nfailed: udp.TestB"},
		{"the test binary exits during a test", udpBegins + aPasses + bBegins + failedEnd, udpBegins + bPasses + udpEnds, skipA, ""},
		{"nothing runs again", udpBegins + aPasses + bFails + failedEnd, udpBegins + udpEnds, skipA, "failed: udp.TestB\nno test ran"},
		{"kernel oops", udpBegins + bFails + anOops + "\n" + failedEnd, "", "", "kernel oops: "},
		{"not all tests ran", udpBegins + bFails, "", "", "failed: udp.TestB"},
	} {
		steps, ran := []plan.Step{{Name: "udp", Argv: []string{"/tests/udp"}}}, ""
		feed := func(r *results, console string) {
			for line := range strings.Lines(console) {
				r.Line(strings.TrimSuffix(line, "\n"))
			}
		}
		r := newResults()
		feed(r, tc.first)
		err := retryFailed(t.Context(), r, r.Err(), steps, func(_ context.Context, next *results, steps []plan.Step) error {
			ran = strings.Join(steps[0].Argv, " ")
			feed(next, tc.then)
			return next.Err()
		}, t.Logf)
		if ran != tc.want {
			t.Errorf("%s: ran %q, want %q", tc.name, ran, tc.want)
		}
		if got := fmt.Sprint(err); tc.err == "" && err != nil || !strings.HasPrefix(got, tc.err) && tc.err != "" {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.err)
		}
		if tc.want != "" && tc.err == "" && r.outcome["udp.TestB"] != passedSecond {
			t.Errorf("%s: TestB is %s", tc.name, r.outcome["udp.TestB"])
		}
	}
}
