// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/bench/measure"
	"github.com/ropewalk/ropewalk/test/bench/remote"
	"github.com/ropewalk/ropewalk/test/bench/result"
	"github.com/ropewalk/ropewalk/test/bench/sshlab"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/program"
	"github.com/ropewalk/ropewalk/test/schema"
)

var agent = &program.Program{Env: "ROPEWALK_BENCH_BIN", Package: "github.com/ropewalk/ropewalk/test/bench"}

func TestMain(m *testing.M) { os.Exit(program.Main(m, agent)) }

// programsDir returns a directory with the programs for hosts.
func programsDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, path := range map[string]string{
		remote.Agent: agent.Need(t), "ropewalk": needBinary(t, "ropewalk", "build"), "wireguard-go": needBinary(t, "wireguard-go", "bin/wireguard-go"),
	} {
		expect.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	return dir
}

func TestHostsAreMeasuredInFull(t *testing.T) {
	lab := sshlab.New(t)
	files, out := t.TempDir(), filepath.Join(t.TempDir(), "report")
	var text, diag bytes.Buffer
	err := runHosts(t.Context(), []string{
		"--rounds", "1", "--seconds", "0.2", "--tests", "tcp64,rev64,rtt_load", "--setups", "bare,ropewalk,ropewalk-xdp,kernel,wireguard-go-spread",
		"--cores", "1,all", "--addresses", fmt.Sprintf("%v,%v", lab.Addrs[0], lab.Addrs[1]), "--ssh", strings.Join(lab.SSH, " "), "--dir", files,
		"--programs", programsDir(t), "--out", out, "--sysctl", "net.ipv4.tcp_keepalive_time=1234", "--link", "100", "a", "b",
	}, &text, &diag)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, &text, &diag)
	}
	var r result.Result
	expect.NoError(t, result.Read(filepath.Join(out, "result.json"), &r))
	for _, setup := range []string{"bare", "ropewalk", "ropewalk-xdp", "wireguard-go-spread"} {
		for _, test := range []string{"tcp64", "rev64", "rtt_load"} {
			if !slices.ContainsFunc(r.Figures, func(f result.Figure) bool {
				return f.Configuration == setup && f.Test == test && f.Cores == r.Under.Cores && len(f.Values) == 1 && f.Values[0] > 0
			}) {
				t.Errorf("no figure of %s of %s: %v", test, setup, r.Failures)
			}
		}
	}
	if len(r.Rows) != 8 || r.Under.SHA256 == "" || r.Under.SHA256 != r.Other.SHA256 {
		t.Errorf("%d rows of %+v", len(r.Rows), r.Under)
	}
	isResult(t, filepath.Join(out, "result.json"))
	page, err := os.ReadFile(filepath.Join(out, "report.md"))
	expect.NoError(t, err)
	for _, want := range []string{"## Where ropewalk is slower", "](throughput.svg)", "](encrypt-cores.svg)", "SHA-256 " + r.Under.SHA256} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the report lacks %q:\n%s", want, page)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(files, "*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestForwardedTrafficIsMeasured(t *testing.T) {
	lab := sshlab.New(t)
	files, out := t.TempDir(), filepath.Join(t.TempDir(), "report")
	var text, diag bytes.Buffer
	err := runHosts(t.Context(), []string{
		"--rounds", "1", "--seconds", "0.2", "--tests", "tcp4,rev64,rtt_idle", "--setups", "bare,ropewalk", "--forward", "10.88.0.0/24",
		"--addresses", fmt.Sprintf("%v,%v", lab.Addrs[0], lab.Addrs[1]), "--ssh", strings.Join(lab.SSH, " "), "--dir", files,
		"--programs", programsDir(t), "--out", out, "a", "b",
	}, &text, &diag)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, &text, &diag)
	}
	var r result.Result
	expect.NoError(t, result.Read(filepath.Join(out, "result.json"), &r))
	found := map[string]bool{}
	for _, f := range r.Figures {
		found[f.Configuration+" "+f.Test] = f.Values[0] > 0
	}
	for _, want := range []string{"bare tcp4", "ropewalk, forwarded tcp4", "ropewalk, forwarded rev64", "ropewalk, forwarded rtt_idle"} {
		if !found[want] {
			t.Errorf("no figure of %s: %v, %v", want, found, r.Failures)
		}
	}
	if len(r.Rows) > 0 {
		t.Errorf("%d rows, which would be compared with predictions", len(r.Rows))
	}
	isResult(t, filepath.Join(out, "result.json"))
	page, err := os.ReadFile(filepath.Join(out, "report.md"))
	expect.NoError(t, err)
	if !strings.Contains(string(page), "A forwards") {
		t.Errorf("the report does not say it:\n%s", page)
	}
	if left, _ := filepath.Glob(filepath.Join(files, "*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// isResult validates a file with the schema of docs/results.
func isResult(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	expect.NoError(t, err)
	s, err := os.ReadFile("../../docs/schemas/" + result.Kind + ".json")
	expect.NoError(t, err)
	expect.NoError(t, schema.Validate(s, string(text)))
}

// stopWhen is a Writer that calls stop when a text is written.
type stopWhen struct {
	bytes.Buffer
	text string
	stop context.CancelFunc
}

func (w *stopWhen) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.text) {
		w.stop()
	}
	return w.Buffer.Write(b)
}

func TestInterruptedHostsKeepFiguresAndAreRestored(t *testing.T) {
	lab := sshlab.New(t)
	files, out := t.TempDir(), filepath.Join(t.TempDir(), "report")
	ctx, stop := context.WithCancel(t.Context())
	var diag bytes.Buffer
	err := runHosts(ctx, []string{
		"--rounds", "50", "--seconds", "0.1", "--tests", "tcp64", "--setups", "ropewalk", "--addresses", fmt.Sprintf("%v,%v", lab.Addrs[0], lab.Addrs[1]),
		"--ssh", strings.Join(lab.SSH, " "), "--dir", files, "--programs", programsDir(t), "--out", out, "a", "b",
	}, &stopWhen{text: "tcp64", stop: stop}, &diag)
	if err == nil || !strings.Contains(err.Error(), "context canceled") {
		t.Errorf("got %v\n%s", err, &diag)
	}
	isResult(t, filepath.Join(out, "result.json"))
	if left, _ := filepath.Glob(filepath.Join(files, "*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestUnusableHostsOptionsAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"want two hosts":              {"a"},
		`unknown setup "x"`:           {"--setups", "x", "a", "b"},
		`unknown test "x"`:            {"--tests", "x", "a", "b"},
		"neither a number nor all":    {"--cores", "0", "a", "b"},
		"want at least 1":             {"--rounds", "0", "a", "b"},
		"1280 to 65535":               {"--mtu", "100", "a", "b"},
		"ParseAddr":                   {"--addresses", "x,y", "a", "b"},
		"want an IPv4 network":        {"--forward", "10.88.0.1/32", "a", "b"},
		"want NAME=VALUE":             {"--sysctl", "x", "a", "b"},
		"value out of range":          {"--port", "70000", "a", "b"},
		"has no bench or no ropewalk": {"--programs", "/nonexistent", "a", "b"},
	} {
		err := runHosts(t.Context(), args, new(bytes.Buffer), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
}

func TestCommandOfResultHasNoNamesOfHosts(t *testing.T) {
	got := hostsCommand([]string{"--rounds", "3", "--ssh", "ssh -F x", "--out=secret", "--xdp"})
	if want := "make bench-hosts A=HOST-A B=HOST-B ARGS='--rounds 3 --xdp'"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTurnsOfHostsAlternate(t *testing.T) {
	all := cells(setups()[:3], []int{1420, 8920}, []int{4, 1})
	list := hostTurns(3, all, []string{"tcp1", "tcp64"}, all[0])
	var first []string
	count := map[string]int{}
	for _, turn := range list {
		count[turn.implementations[0]]++
		if whole := strings.HasSuffix(turn.versus, "MTU 1420, 4 cores"); whole != (turn.tests == nil) {
			t.Errorf("%s takes %v", turn.versus, turn.tests)
		}
		if len(first) < turn.round {
			first = append(first, turn.versus)
		}
	}
	if len(slices.Compact(slices.Sorted(slices.Values(first)))) != 3 || len(count) != 12 || count[all[0].String()] != 3 {
		t.Errorf("the rounds begin with %v; turns: %v", first, count)
	}
	if got := hostTurns(1, all, []string{"tcp1"}, all[0]); len(got) != 3 {
		t.Errorf("%d turns without bulk, want 3", len(got))
	}
}

// sampleReport is a report of ropewalk and another implementation.
func sampleReport(ropewalk, other float64) *hostsReport {
	list := []setup{setups()[0], setups()[1], {name: "wireguard-go", implementation: "wireguard-go", spread: result.SpreadOff}}
	r := &hostsReport{cells: cells(list, []int{1420}, []int{4}), measures: measure.Hosts("")}
	r.Target, r.Under.Cores = "zen3-16c-25g", 4
	r.predictions.Predictions = []result.Prediction{{Target: r.Target, Direction: result.Encrypt, MTU: 1420, Spread: result.SpreadOn, Cores: 4, Low: 13, Expected: 22, High: 22}}
	for i, v := range []float64{25, ropewalk, other} {
		r.samples = append(r.samples,
			sample{Round: 1, Implementation: r.cells[i].String(), Test: "tcp64", Figures: map[string]float64{valueFigure: v, busyFigure: 3}},
			sample{Round: 1, Implementation: r.cells[i].String(), Test: "rtt_idle", Figures: map[string]float64{valueFigure: 1 / v}})
	}
	r.fill()
	return r
}

func TestReportShowsLossesAndPredictions(t *testing.T) {
	for _, c := range []struct {
		ropewalk, other float64
		want            []string
	}{
		{20, 10, []string{"Nowhere, in 2 comparisons", "| 20.0 | 20.0–20.0 | 3.00 | 22 (13–22) | inside |"}},
		{5, 10, []string{"In 2 of 2 comparisons", "| 5.00 | wireguard-go | 10.0 | 0.50 |", "| 22 (13–22) | **outside** |"}},
	} {
		page := sampleReport(c.ropewalk, c.other).markdown(nil)
		for _, want := range c.want {
			if !strings.Contains(page, want) {
				t.Errorf("the report lacks %q:\n%s", want, page)
			}
		}
	}
}

func TestResultHasNoNamesOrAddressesOfHosts(t *testing.T) {
	r := sampleReport(20, 10)
	r.names = newHostsNames([2]string{"root@Db.example.org", "ssh://me@db.example.org.test:2222"}, [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.11")})
	r.Command = "make bench-hosts A=HOST-A B=HOST-B ARGS='--addresses 10.0.0.1,10.0.0.11'"
	r.Under.Doctor = []string{"load: db.example.org is busy"}
	r.missing = []string{"kernel: host A (root@Db.example.org): no"}
	for text, want := range map[string]string{
		"sending UDP from 10.0.0.1 to 10.0.0.11:51822":                                                                "sending UDP from A to B:51822",
		"lost the connection to host B (ssh://me@db.example.org.test:2222): Connection to db.example.org.test closed": "lost the connection to host B (B): Connection to B closed",
		"ssh: connect to host db.example.org port 22":                                                                 "ssh: connect to host A port 22",
		"10.0.0.1:5 10.0.0.1, [2001:db8::7]:22, 192.0.2.7: no 127.0.0.1, [::]:51822, 1.2.3, 02:00:00":                 "A:5 A, [ADDRESS]:22, ADDRESS: no 127.0.0.1, [::]:51822, 1.2.3, 02:00:00",
	} {
		r.samples = append(r.samples, sample{Round: 1, Implementation: r.cells[1].String(), Test: "tcp64", Error: text})
		r.fill()
		if got := r.Failures[len(r.Failures)-1]; !strings.HasSuffix(got, "(tcp64): "+want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	text, err := r.JSON()
	expect.NoError(t, err)
	for _, name := range []string{"10.0.0.1", "example", "2001:db8", "192.0.2"} {
		if strings.Contains(string(text), name) {
			t.Errorf("the result has %q:\n%s", name, text)
		}
	}
	if want := "make bench-hosts A=HOST-A B=HOST-B ARGS='--addresses A,B'"; r.Command != want {
		t.Errorf("the command is %q, want %q", r.Command, want)
	}
}

func TestRowsReportPlannedPorts(t *testing.T) {
	r := sampleReport(20, 10)
	r.samples = append(r.samples[:0:0], r.samples...)
	for i := range r.samples {
		r.samples[i].Figures[plannedFigure] = 1
	}
	r.fill()
	for _, w := range r.Rows {
		if w.Spread != result.SpreadPlanned {
			t.Errorf("%+v", w)
		}
	}
}
