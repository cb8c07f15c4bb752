// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/test/golden"
)

// exampleReport has figures of all stages, one that failed, and a name from outside that tries to be more than text.
func exampleReport() *Report {
	r := &Report{
		Schema: Schema, Command: "sudo ropewalk bench --lanes 1,4", Version: "v1", Seconds: 2,
		Machine: Machine{CPU: "Example <CPU> & Co", Cores: 4, Kernel: "6.18.0", Arch: "amd64", Busy: 12},
	}
	add := func(stage, name, what, unit string, v float64) *Figure {
		r.Figures = append(r.Figures, Figure{Stage: stage, Name: name, What: what, Unit: unit, Value: v})
		return &r.Figures[len(r.Figures)-1]
	}
	add(StageCrypto, "seal_train", "seal 45 × 1440 B, one core", "GB/s", 2.2).More = map[string]float64{"kpps": 1528}
	add(StageCrypto, "open_train", "open 45 × 1440 B, one core", "GB/s", 2.4)
	add(StageCrypto, "seal_small_all", "seal 64 B, all 4 cores at once", "GB/s", 0.8999)
	add(StageTUN, "write_train", "write 45 × 1440 B, one core", "Gbit/s", 250)
	add(StageTUN, "read_train", "read 45 × 1440 B, one core", "Gbit/s", 300)
	add(StageTUN, "write_small", "write 64 B, one core", "kpps", 1524.3)
	add(StageTUN, "tcp", "TCP through two TUNs", "Gbit/s", 16).More = map[string]float64{"cores_per_gbps": 0.12, "cores": 1.92}
	add(StageUnderlay, "send_gso", "send", "Gbit/s", 245)
	add(StageUnderlay, "receive_gso", "receive", "Gbit/s", 270)
	add(StageUnderlay, "pair_gso", "both", "Gbit/s", 59).More = map[string]float64{"cores_per_gbps": 0.02, "cores": 1.1}
	add(StageUnderlay, "send_single", "send one by one", "Gbit/s", 0).Error = "sending datagrams: too big\nsecond line"
	add(StageRaw, "tcp", "TCP without a tunnel, 4 streams", "Gbit/s", 27).More = map[string]float64{"cores_per_gbps": 0.07}
	add(StageRaw, "tcp", "TCP without a tunnel, 1 stream", "Gbit/s", 16.8).More = map[string]float64{"cores_per_gbps": 0.08}
	for _, x := range []Throughput{{1, 1, 3.38, 1.9}, {1, 4, 4.2, 2.1}, {4, 1, 3.4, 2}, {4, 4, 9.81, 3.9}} {
		f := add(StageTunnel, "tcp", "TCP, "+term.Count(x.Streams, "stream")+", "+term.Count(x.Lanes, "lane"), "Gbit/s", x.Gbps)
		f.Lanes, f.Streams, f.More = x.Lanes, x.Streams, map[string]float64{"cores": x.Cores}
	}
	add(StageTunnel, "rtt_idle", "round trip, idle, mean", "ms", 0.399).More = map[string]float64{"p50_ms": 0.302, "p99_ms": 1.22}
	add(StageTunnel, "rtt_load", "round trip under TCP of 4 streams, mean", "ms", 4.78).More = map[string]float64{"p50_ms": 5, "p99_ms": 9.34}
	add(StageTunnel, "ndr64", "64 B datagrams with under 1 % lost", "kpps", 300).More = map[string]float64{"next_kpps": 400}
	add(StageTunnel, "wakeups", "both daemons' context switches, idle", "1/s", 0)
	add(StageTunnel, "rss", "both daemons' peak memory", "MiB", 42.7)
	v, _ := NewVerdict(PartsOf(r))
	r.Verdict = &v
	return r
}

func TestTableIsAligned(t *testing.T) {
	var b bytes.Buffer
	if err := WriteTable(&b, exampleReport()); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/table.txt", b.Bytes())
}

func TestJSONKeepsItsNames(t *testing.T) {
	text, err := json.MarshalIndent(exampleReport(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/report.json", append(text, '\n'))
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(exampleReport(), &back); diff != "" {
		t.Error(diff)
	}
}

func TestPlotsAreWellFormedAndNamedOnce(t *testing.T) {
	names := map[string]bool{}
	for _, p := range Plots(exampleReport()) {
		if names[p.Name] {
			t.Errorf("two plots are called %s", p.Name)
		}
		names[p.Name] = true
		checkSVG(t, p.SVG)
	}
	for _, want := range []string{"crypto", "tun-trains", "tun-small", "underlay", "throughput", "latency", "datagrams", "limit"} {
		if !names[want] {
			t.Errorf("no plot %s", want)
		}
	}
}

func TestEmptyReportHasNoPlots(t *testing.T) {
	if got := Plots(&Report{Figures: []Figure{{Stage: StageCrypto, Name: "seal_train", Error: "no"}}}); len(got) != 0 {
		t.Errorf("%d plots", len(got))
	}
}

func TestTableDistinguishesLossFromGeneratorLimit(t *testing.T) {
	for loss, want := range map[float64]string{3: "  (400 is too much)", 0.2: "  (the generator does not reach 400)"} {
		f := Figure{More: map[string]float64{"next_kpps": 400, "next_loss_percent": loss}}
		if got := beside(f); got != want {
			t.Errorf("%v %% lost: %q, want %q", loss, got, want)
		}
	}
}

func TestThreeDigitsHasNoExponent(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1.00", 12.345: "12.3", 123.4: "123", 12345: "12345", 0.012345: "0.0123", -2.5: "-2.50", 1e-9: "0.000000",
	} {
		if got := threeDigits(v); got != want {
			t.Errorf("threeDigits(%v) = %q, want %q", v, got, want)
		}
	}
}
