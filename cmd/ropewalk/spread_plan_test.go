// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ropewalk/ropewalk/pkg/observe/portplan"
	"github.com/ropewalk/ropewalk/test/golden"
)

func spreadPlan(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newSpreadPlanCmd()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func spreadPlanReport(t *testing.T, args ...string) portplan.Report {
	t.Helper()
	out, err := spreadPlan(t, append(args, "--json")...)
	if err != nil {
		t.Fatal(err)
	}
	var r portplan.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return r
}

func TestSpreadPlanJSONMatchesGolden(t *testing.T) {
	got, err := spreadPlan(t, "--flows", "4", "--queues", "2", "--lanes", "2", "--rounds", "3", "--json")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/spread-plan-json.golden", got)
}

func TestSpreadPlanTextMatchesGolden(t *testing.T) {
	for name, args := range map[string][]string{
		"spread-plan":            {"--seed", "1"},
		"spread-plan-random-key": {"--seed", "7", "--key", "random"},
	} {
		got, err := spreadPlan(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+name+".golden", got)
		for line := range strings.Lines(got) {
			if utf8.RuneCountInString(line) > 81 {
				t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
			}
		}
	}
}

func TestSpreadPlanLoadsQueuesEvenlyUnlikeHash(t *testing.T) {
	r := spreadPlanReport(t)
	if len(r.Strategies) != 3 || r.PlanError != "" {
		t.Fatalf("got %+v, want len(Strategies) 3, PlanError \"\"", r)
	}
	hash, planned := r.Strategies[0], r.Strategies[2]
	if hash.Median < 2.5 || hash.Median > 4.5 {
		t.Errorf("hash: the busiest queue carries %.2f times the mean", hash.Median)
	}
	if planned.Median != 1 || planned.BusiestToMean != 1 || planned.Idle != 0 {
		t.Errorf("planned: busiest %.2f, median %.2f, %d queues idle", planned.BusiestToMean, planned.Median, planned.Idle)
	}
	for _, c := range r.Strategies {
		sum := 0.0
		for _, load := range c.Loads {
			sum += load
		}
		if sum != 16 {
			t.Errorf("%s: %v of 16 flows are counted", c.Name, sum)
		}
	}
}

func TestSpreadPlanDependsOnSeedOnly(t *testing.T) {
	first, err := spreadPlan(t, "--seed", "9")
	second, _ := spreadPlan(t, "--seed", "9")
	other, _ := spreadPlan(t, "--seed", "10")
	if err != nil || first != second || first == other {
		t.Errorf("%v\n%s\n%s\n%s", err, first, second, other)
	}
}

func TestSpreadPlanAcceptsKeyTableAndIPv6(t *testing.T) {
	key := strings.TrimSuffix(strings.Repeat("6d:5a:", 20), ":")
	r := spreadPlanReport(t, "--key", key, "--indir", "7, 3,7,3", "--from", "2001:db8::1", "--to", "[2001:db8::2]:1", "--rounds", "1")
	if len(r.Queues) != 2 || r.Queues[0] != 3 || r.Queues[1] != 7 {
		t.Errorf("got queues %v, want length 2", r.Queues)
	}
}

func TestSpreadPlanUsesGivenNumberOfPorts(t *testing.T) {
	for lanes, want := range map[string]int{"0": 16, "4": 4, "32": 32} {
		for _, c := range spreadPlanReport(t, "--lanes", lanes, "--rounds", "1").Strategies {
			if len(c.Ports) != want {
				t.Errorf("--lanes %s, %s: got %d ports, want %d", lanes, c.Name, len(c.Ports), want)
			}
		}
	}
}

func TestSpreadPlanExplainsHashWithoutPorts(t *testing.T) {
	o := spreadPlanOptions{flows: 4, queues: 4, rounds: 1, indir: "equal", key: strings.Repeat("6d5a", 20), from: "192.0.2.1", to: "192.0.2.2:1", ports: "61000-61999"}
	s, err := o.simulation(func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	s.RSS.Device, s.RSS.UDP4 = "eth7", 1 // addresses only
	var out bytes.Buffer
	if err := spreadPlanMain(&out, s, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"no plan: ", "ethtool -N eth7 rx-flow-hash udp4 sdfn", "4.00 × mean", "3 of 4"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestSpreadPlanRejectsInvalidFlags(t *testing.T) {
	for _, args := range [][]string{
		{"--flows", "0"},
		{"--flows", "10001"},
		{"--queues", "0"},
		{"--queues", "4097"},
		{"--lanes", "65"},
		{"--lanes", "-1"},
		{"--rounds", "0"},
		{"--flows", "10000", "--rounds", "10000"},
		{"--key", "xyz"},
		{"--indir", "1,2,x"},
		{"--indir", ""},
		{"--indir", "4096"},
		{"--indir", "1,2", "--queues", "2"},
		{"--indir", strings.Repeat("1,", 1<<16)},
		{"--from", "here"},
		{"--to", "192.0.2.1"},
		{"--from", "2001:db8::1"},
		{"--ports", "9-5"},
		{"--ports", "0-0"},
		{"--device", "eth7", "--key", "00"},
		{"--device", "eth7", "--queues", "3"},
		{"--device", "eth7", "--indir", "equal"},
		{"more"},
	} {
		if _, err := spreadPlan(t, args...); exitCode(orNone(err)) != exitUsage {
			t.Errorf("%.60q: got error %v", args, err)
		}
	}
	for _, args := range [][]string{{"--key", "6d5a"}, {"--device", "lo"}, {"--device", "absent0"}} {
		if _, err := spreadPlan(t, args...); err == nil || exitCode(err) != exitError {
			t.Errorf("%q: got error %v, want an error", args, err)
		}
	}
}

func orNone(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}
