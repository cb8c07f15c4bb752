// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/golden"
)

// exampleRows and exampleReport: three rounds against two peers, on a machine that becomes slower; one peer fails twice.
func exampleRows() []row {
	return []row{
		{test: "tcp1", figure: valueFigure, unit: "Gbit/s"},
		{test: "udpgso", figure: valueFigure, unit: "Gbit/s"},
		{test: "udpgso", figure: "loss_percent", unit: "% lost", less: true, bare: true},
		{test: "ndr64", figure: valueFigure, unit: "kpps"},
		{test: "rss", figure: valueFigure, unit: "MiB", less: true},
		{test: "wakeups", figure: valueFigure, unit: "1/s", less: true, bare: true},
	}
}

func exampleReport() *report {
	r := &report{
		Date:    time.Date(2026, 11, 21, 1, 28, 0, 0, time.UTC),
		Machine: machine{Kernel: "6.18.5", CPU: "Example CPU @ 2.00GHz", Cores: 2},
		Command: "go run ./test/bench --rounds 3", Rounds: 3, Whole: 3, Seconds: 2.5, Queues: 2,
		Tests:    []string{"tcp1", "udpgso", "ndr64", "rss", "wakeups"},
		Versions: map[string]string{ropewalkName: "v0.1.0", "wireguard-go": "v0.0.1", "boringtun": "0.7.1"},
	}
	for round := 1; round <= 3; round++ {
		speed := 1 / float64(round)
		add := func(versus, implementation, test string, figures map[string]float64, failure string) {
			r.Samples = append(r.Samples, sample{
				Round: round, Versus: versus, Implementation: implementation, Test: test, Figures: figures, Error: failure,
			})
		}
		add(rawName, rawName, "tcp1", map[string]float64{valueFigure: 36.6 * speed}, "")
		for _, p := range []string{"wireguard-go", "boringtun"} {
			slow := speed * 0.9
			add(p, ropewalkName, "tcp1", map[string]float64{valueFigure: 4 * speed}, "")
			add(p, p, "tcp1", map[string]float64{valueFigure: 3 * slow}, "")
			add(p, ropewalkName, "udpgso", map[string]float64{valueFigure: 2.5, "loss_percent": 0}, "")
			if p == "boringtun" && round > 1 {
				add(p, p, "udpgso", nil, "boringtun exited unexpectedly (signal: killed); it last wrote:\n  more")
			} else {
				add(p, p, "udpgso", map[string]float64{valueFigure: 0.046, "loss_percent": 97.26}, "")
			}
			add(p, ropewalkName, "ndr64", map[string]float64{valueFigure: 100}, "")
			add(p, p, "ndr64", map[string]float64{valueFigure: 0}, "")
			add(p, ropewalkName, "rss", map[string]float64{valueFigure: 24.25}, "")
			add(p, p, "rss", map[string]float64{valueFigure: 16.5}, "")
			add(p, ropewalkName, "wakeups", map[string]float64{valueFigure: 0}, "")
			add(p, p, "wakeups", map[string]float64{valueFigure: 18}, "")
		}
	}
	return r
}

func TestTheTableInText(t *testing.T) {
	var out bytes.Buffer
	names := []string{"wireguard-go", "boringtun"}
	if err := writeText(&out, exampleReport().summarize(exampleRows(), names), names); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/table.txt", out.Bytes())
}

func TestTheTableInMarkdown(t *testing.T) {
	list := []peer{pickPeer(t, "wireguard-go"), pickPeer(t, "boringtun")}
	r := exampleReport()
	what := map[string]string{
		"tcp1": "TCP, 1 stream", "udpgso": "UDP in trains", "ndr64": "highest rate", "rss": "peak memory",
		"wakeups": "context switches",
	}
	golden.Check(t, "testdata/table.md", r.markdown(r.summarize(exampleRows(), peerNames(list)), list, what))
}

func TestEmptyColumnIsOmitted(t *testing.T) {
	r := exampleReport()
	r.Samples = slices.DeleteFunc(r.Samples, func(s sample) bool { return s.Versus == rawName })
	list := []peer{pickPeer(t, "wireguard-go")}
	text := string(r.markdown(r.summarize(exampleRows(), peerNames(list)), list, nil))
	for _, row := range []string{"| test | unit | ropewalk | wireguard-go |\n| --- | --- | --- | --- |\n", "| `rss`:  | MiB ↓ | 24.2 | 16.5 (**1.47**) |\n"} {
		if !strings.Contains(text, row) {
			t.Errorf("no %q in\n%s", row, text)
		}
	}
}

func TestPairsArePrintedAsMeasured(t *testing.T) {
	var out bytes.Buffer
	live := newLiveTable(&out, exampleRows())
	for _, s := range exampleReport().Samples[:22] {
		live.add(s)
	}
	golden.Check(t, "testdata/live.txt", out.Bytes())
}

func TestPairOutputIsIndependentOfOrder(t *testing.T) {
	sampleOf := func(implementation string, v float64) sample {
		return sample{Round: 2, Versus: "x", Implementation: implementation, Test: "tcp1", Figures: map[string]float64{valueFigure: v}}
	}
	mine, other := sampleOf(ropewalkName, 3), sampleOf("x", 2)
	var printed [2]bytes.Buffer
	for i, pair := range [][]sample{{mine, other}, {other, mine}} {
		live := newLiveTable(&printed[i], exampleRows())
		for _, s := range pair {
			live.add(s)
		}
	}
	if a, b := printed[0].String(), printed[1].String(); a != b || !strings.Contains(a, "1.50") {
		t.Errorf("printed\n%sand\n%s", a, b)
	}
}

func TestThreeDigitsAreEnough(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.00712: "0.007", 0.0704: "0.070", 0.414: "0.41", 3.456: "3.46", 37.24: "37.2", 250.4: "250", 12345: "12345",
	} {
		if got := digits(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}
