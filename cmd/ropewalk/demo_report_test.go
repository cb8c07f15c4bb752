// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ropewalk/ropewalk/pkg/netlab"
	"github.com/ropewalk/ropewalk/pkg/traffic"
)

func goodReport() demoReport {
	stream := []traffic.Stream{{Counts: traffic.Counts{Bytes: 1}}}
	lanes := make([]demoLane, 20)
	for i := range lanes {
		lanes[i] = demoLane{TxPackets: 123_456_789, TxTrains: 9_876_543, RxPackets: 123_456_789, RxTrains: 9_876_543}
	}
	lanes[1].Drops = map[string]uint64{"tx_no_peer": 3, "rx_auth": 0, "rx_replay": 1234}
	r := demoReport{
		Streams: 256, QueueCount: 8,
		Ping: traffic.Result{Latency: &traffic.Latency{P50: 123456, P99: 123456789}},
		TCP:  traffic.Result{Streams: stream, BitsPerSecond: 123.4e9, Seconds: 1234.5, Counts: traffic.Counts{Bytes: 5e12}},
		UDP: traffic.Result{
			Streams: stream, BitsPerSecond: 9.87e9, Seconds: 1234.5, PacketsPerSecond: 1234567,
			Counts: traffic.Counts{Bytes: 5e9, Packets: 123_456_789}, SentPackets: 123_456_790, LostPackets: 1,
		},
		Cable: demoCable{Data: 1_234_567_890, Handshake: 4, Neighbour: 6, Missed: 1_234_567},
		Left:  &demoStats{Lanes: lanes}, Right: &demoStats{Lanes: lanes[:2], Drops: map[string]uint64{"hs_replay": 1}},
		Queues: make([]netlab.QueueCount, 64),
	}
	r.Queues[3].Packets, r.Queues[63].Packets = 1_234_567_890, 617_283_945
	return r
}

func TestEveryFaultFailsTheDemo(t *testing.T) {
	good := goodReport()
	good.judge()
	if err := good.err(); err != nil || !good.OK {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(*demoReport){
		"corrupt TCP":        func(r *demoReport) { r.TCP.Corrupt = 1 },
		"lost TCP":           func(r *demoReport) { r.TCP.LostBytes = 1 },
		"corrupt UDP":        func(r *demoReport) { r.UDP.Corrupt = 1 },
		"reordered":          func(r *demoReport) { r.UDP.Reordered = 1 },
		"duplicated":         func(r *demoReport) { r.UDP.Duplicated = 1 },
		"a silent stream":    func(r *demoReport) { r.UDP.Streams = make([]traffic.Stream, 1) },
		"no stream":          func(r *demoReport) { r.TCP.Streams = nil },
		"a stranger":         func(r *demoReport) { r.Cable.Foreign = 1 },
		"plaintext":          func(r *demoReport) { r.Cable.Plaintext = 1 },
		"nothing on cable":   func(r *demoReport) { r.Cable = demoCable{} },
		"no handshake there": func(r *demoReport) { r.Cable.Handshake = 0 },
	} {
		r := goodReport()
		breakIt(&r)
		r.judge()
		if r.OK || r.err() == nil || !strings.Contains(r.render(demoStyle{}), "✗") {
			t.Errorf("%s went through", name)
		}
	}
}

func TestReportFits80Columns(t *testing.T) {
	r := goodReport()
	r.judge()
	for _, line := range strings.Split(r.render(demoStyle{}), "\n") {
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
}

func TestReportSaysWhatMatters(t *testing.T) {
	r := goodReport()
	r.judge()
	text := r.render(demoStyle{})
	for _, want := range []string{
		"123.40 Gbit/s", "1235 kpps", "0 reordered", "123.456µs"[:5], "12.5", "rx_replay 1,234, tx_no_peer 3", "hs_replay 1",
		"and 4 lanes more", "66.7%", "1,234,567 not captured",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "rx_auth") || strings.Contains(text, "\x1b") {
		t.Errorf("too much is in\n%s", text)
	}
	if colored := r.render(demoStyle{color: true}); !strings.Contains(colored, "\x1b[32m✓\x1b[0m") {
		t.Errorf("no colour in %q", colored)
	}
}

func TestReportWithoutDaemonStatisticsOrQueues(t *testing.T) {
	r := demoReport{}
	r.judge()
	if text := r.render(demoStyle{}); !strings.Contains(text, "no statistics") || r.OK {
		t.Errorf("got %s", text)
	}
}

func TestReportIsJSON(t *testing.T) {
	r := goodReport()
	r.judge()
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := json.Unmarshal(out, &back); err != nil || back["ok"] != true {
		t.Errorf("got %v from %s", err, out)
	}
}

func TestLiveShowsRatesSinceTheLastLine(t *testing.T) {
	last := traffic.Progress{Elapsed: time.Second, Received: traffic.Counts{Bytes: 1e6, Packets: 1000}}
	now := traffic.Progress{Elapsed: 3 * time.Second, Received: traffic.Counts{Bytes: 501e6, Packets: 401_000, Reordered: 2}}
	for _, c := range []struct {
		kind traffic.Kind
		bar  bool
		want string
	}{
		{traffic.TCP, false, "TCP   3.0/4.0 s  2.00 Gbit/s"},
		{traffic.UDP, true, "UDP ██████████████████░░░░░░  3.0/4.0 s  2.00 Gbit/s  200 kpps  2 reordered"},
	} {
		got := phaseLine(c.kind, 4*time.Second, last, now, c.bar)
		if got != c.want || utf8.RuneCountInString(got) > 79 {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

func TestLiveWithoutTerminalWritesALinePerSecond(t *testing.T) {
	var out bytes.Buffer
	l := newDemoLive(&out, false)
	phase := l.phase(traffic.TCP, 2*time.Second)
	for ms := 200; ms <= 2000; ms += 200 {
		phase(traffic.Progress{Elapsed: time.Duration(ms) * time.Millisecond})
	}
	l.clear()
	if got := strings.Count(out.String(), "\n"); got != 2 || strings.ContainsAny(out.String(), "\r\x1b") {
		t.Errorf("got %q", out.String())
	}
}

func TestLiveWithJSONIsSilent(t *testing.T) {
	var out bytes.Buffer
	l := newDemoLive(&out, true)
	l.say("step")
	l.phase(traffic.TCP, time.Second)(traffic.Progress{Elapsed: time.Second})
	l.clear()
	if out.Len() != 0 {
		t.Errorf("got %q", out.String())
	}
}

func TestNumbersForPeople(t *testing.T) {
	for got, want := range map[string]string{
		thousands(0): "0", thousands(999): "999", thousands(1000): "1,000", thousands(12345678): "12,345,678",
		bitRate(0): "0 bit/s", bitRate(1500): "1.50 kbit/s", bitRate(4.5e9): "4.50 Gbit/s",
		packetRate(10): "10 packets/s", packetRate(123456): "123 kpps",
		percent(1, 0): "-", percent(1, 8): "12.5%", per(1, 0): "-", per(3, 2): "1.5",
		barOf(0.5, 4, "."): "██..", barOf(7, 2, "."): "██", barOf(-1, 2, "."): "..",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
