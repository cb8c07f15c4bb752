// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/scale/model"
)

// The committed files, relative to this package.
const (
	costsPath = "costs.json"
	checkPath = "check.json"
	docPath   = "../../docs/dev/model.md"
)

func committed(t *testing.T) *figures {
	t.Helper()
	f := &figures{}
	if err := readJSON(costsPath, &f.costs); err != nil {
		t.Fatal(err)
	}
	if err := readJSON(checkPath, &f.check); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCommittedFilesFeedTheModel(t *testing.T) {
	f := committed(t)
	for _, s := range scenarios() {
		if len(f.check.Scenes[s.Name]) != f.check.Rounds {
			t.Errorf("got %d rounds of %q, want %d", len(f.check.Scenes[s.Name]), s.Name, f.check.Rounds)
		}
		predicted, err := s.predict(&f.costs)
		if err != nil {
			t.Fatal(err)
		}
		// The throughput if both cores did nothing else.
		cores := 2.0
		if s.cpu[0] == s.cpu[1] && s.cpu[0] >= 0 {
			cores = 1
		}
		if most := cores * 8 / predicted.Cost[4]; predicted.Gbps > most*1.03 || predicted.Gbps < most/2 {
			t.Errorf("%s: %.2f Gbit/s are predicted, of at most %.2f", s.Name, predicted.Gbps, most)
		}
	}
}

func TestEveryTableHasMarkersInDocument(t *testing.T) {
	f := committed(t)
	f.many = blank(strategies(), coreCounts())
	f.few, f.elephant, f.mice = f.many, blank(f.helpStrategies(), coreCounts()), blank(strategies(), offered())
	f.stock = blank(stockStrategies(), coreCounts())
	tables, err := f.tables()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(docPath)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "scale.md")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time, the markers are still there
		if err := fillIn(path, tables); err != nil {
			t.Fatal(err)
		}
	}
	filled, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, table := range tables {
		if !bytes.Contains(filled, []byte("<!-- scale:"+name+" -->\n"+strings.TrimRight(table, "\n")+"\n<!-- /scale -->\n")) {
			t.Errorf("table %q is not where it belongs", name)
		}
	}
	if err := fillIn(path, map[string]string{"nowhere": ""}); err == nil {
		t.Error("a table without a place is no error")
	}
}

// blank returns runs without any traffic.
func blank(list []strategy, at []int) map[string]map[int]summary {
	all := map[string]map[int]summary{}
	for _, w := range list {
		all[w.name] = map[int]summary{}
		for _, n := range at {
			all[w.name][n] = summary{busiest: map[string]float64{model.ResourceRxLane: 1}}
		}
	}
	return all
}

func TestCostFitPassesThroughBothPoints(t *testing.T) {
	for _, want := range [][2]float64{{0, 3}, {700, 0.2}, {2500, 0}} {
		at := func(x, y float64) float64 { return want[0]*x + want[1]*y }
		a, b := solveTwo(at(1, 61_000), at(1, 52), [2]float64{1, 1}, [2]float64{61_000, 52})
		if math.Abs(a-want[0]) > 1e-6 || math.Abs(b-want[1]) > 1e-6 {
			t.Errorf("got %v and %v, want %v", a, b, want)
		}
	}
	// If the second point is too high or too low, only the first one lies on the line.
	for _, small := range []float64{-5, 20_000} {
		a, b := solveTwo(10_000, small, [2]float64{1, 1}, [2]float64{61_000, 52})
		if a < 0 || b < 0 || math.Abs(a+b*61_000-10_000) > 1e-6 {
			t.Errorf("small %v: got %v and %v, want both at least 0", small, a, b)
		}
	}
}

func TestSurveyRecoversKnownCosts(t *testing.T) {
	s := &survey{
		trainAlone: trainTimes{3000, 16000, 17000, 4000}, ackAlone: trainTimes{27, 166, 167, 34},
		data: map[cableKind][]stageTimes{}, acks: map[cableKind][]stageTimes{}, trains: []model.Train{{Packets: 45, Bytes: 61_000}},
	}
	const element, times = 700.0, 1.25
	system := model.Cost{Element: 3000, Byte: 0.1}
	points := func(t model.Train, alone trainTimes) stageTimes {
		p := stageTimes{
			model.Split:   element + times*(alone.split+alone.seal),
			model.Open:    element + times*(alone.open+alone.merge),
			model.Softirq: 5000 + 400*float64(t.Packets), model.AppSend: 0.2 * float64(t.Bytes), model.AppReceive: 0.3 * float64(t.Bytes),
		}
		for _, stage := range []model.Stage{model.TUNRead, model.Send, model.Receive, model.TUNWrite} {
			p[stage] = system.Of(t)
		}
		return p
	}
	f := &costFile{Ack: model.Train{Packets: 1, Bytes: 52}}
	for kind := plainCable; kind <= frameCable; kind++ {
		s.data[kind], s.acks[kind] = []stageTimes{points(s.trains[0], s.trainAlone)}, []stageTimes{points(f.Ack, s.ackAlone)}
	}
	s.fill(f)
	for _, stage := range []model.Stage{model.TUNRead, model.Send, model.Receive, model.TUNWrite} {
		if got := f.Stages[stage]; math.Abs(got.Element-system.Element) > 0.1 || math.Abs(got.Byte-system.Byte) > 1e-4 {
			t.Errorf("got %s costs %+v, want %+v", stage, got, system)
		}
	}
	if f.InSitu != [2]float64{times, times} {
		t.Errorf("the engine is %v times as slow as its stages by themselves, want %v", f.InSitu, times)
	}
	engine := f.Stages.Of(model.Train{Packets: 45, Bytes: 45 * 1420}, model.Split, model.Seal)
	if want := element + times*(s.trainAlone.split+s.trainAlone.seal); math.Abs(engine-want) > want/1000 {
		t.Errorf("the engine takes %v of a train, want %v", engine, want)
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	var back costFile
	if err := json.Unmarshal(text, &back); err != nil || back.Stages != f.Stages {
		t.Errorf("%v: costs are not read as written", err)
	}
}

// TestTrainBenchOpensWhatItSealed processes both kinds of trains that are measured.
func TestTrainBenchOpensWhatItSealed(t *testing.T) {
	for _, shape := range [][2]int{{trainSegments, trainPayload}, {1, 12}} {
		l, err := newTrainBench(shape[0], shape[1])
		if err != nil {
			t.Fatal(err)
		}
		times, err := l.time(1)
		if err != nil || times.seal <= 0 || times.merge <= 0 {
			t.Errorf("%v: got %+v, error %v, want no error", shape, times, err)
		}
		if lost := l.open(0); lost != shape[0] {
			t.Errorf("%d of %d messages were refused the second time", lost, shape[0])
		}
	}
}

func TestWindowTurnsAreTakenOnce(t *testing.T) {
	for _, n := range []int{1, trainSegments} {
		op, closeOp, err := windowOp(n)
		if err != nil {
			t.Fatal(err)
		}
		for turn := range 1000 {
			op(turn%2, 0)
		}
		if err := closeOp(); err != nil {
			t.Error(err)
		}
	}
}

func TestMedianIsTheMiddle(t *testing.T) {
	for _, tt := range []struct {
		of   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(tt.of); got != tt.want {
			t.Errorf("median of %v: got %v, want %v", tt.of, got, tt.want)
		}
	}
}

func TestAppsCarryEveryByte(t *testing.T) {
	var out bytes.Buffer
	ready, done := newFirstLine(), make(chan error, 1)
	go func() { done <- sink("127.0.0.1:0", 2, io.MultiWriter(&out, ready)) }()
	<-ready.seen
	if err := source(ready.line, 2, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, count, _ := strings.Cut(out.String(), "\n"); len(count) < 2 || count[0] == '0' {
		t.Errorf("the sink reports %q", out.String())
	}
}

func TestUnknownCommandsAreRefused(t *testing.T) {
	for _, args := range [][]string{nil, {"bogus"}, {"sink", "x"}, {"sink", "x", "many"}, {"figures", "-bogus"}} {
		if run(t.Context(), args) == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
