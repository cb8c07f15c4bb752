// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

func goodReport() Report {
	stream := []traffic.Stream{{Counts: traffic.Counts{Bytes: 1}}}
	lanes := make([]Lane, 20)
	for i := range lanes {
		lanes[i] = Lane{TxPackets: 123_456_789, TxTrains: 9_876_543, RxPackets: 123_456_789, RxTrains: 9_876_543}
	}
	lanes[1].Drops = map[string]uint64{"tx_no_peer": 3, "rx_auth": 0, "rx_replay": 1234}
	run := Load{
		TCP: traffic.Result{Streams: stream, BitsPerSecond: 123.4e9, Seconds: 1234.5, Counts: traffic.Counts{Bytes: 5e12}},
		UDP: traffic.Result{
			Streams: stream, BitsPerSecond: 9.87e9, Seconds: 1234.5, PacketsPerSecond: 1234567,
			Counts: traffic.Counts{Bytes: 5e9, Packets: 123_456_789}, SentPackets: 123_456_790, LostPackets: 1,
		},
	}
	off, on := run, run
	off.Spread, off.SourcePorts, off.Queues = spreadOff, 1, make([]netlab.QueueCount, 64)
	on.Spread, on.SourcePorts, on.Queues = spreadOn, 64, make([]netlab.QueueCount, 64)
	off.Queues[0].Packets, off.Queues[9].Packets = 1_234_567_890_123, 5
	on.Queues[3].Packets, on.Queues[63].Packets = 1_234_567_890, 617_283_945
	return Report{
		Streams: 256, QueueCount: 64,
		Ping:  traffic.Result{Latency: &traffic.Latency{P50: 123456, P99: 123456789}},
		Runs:  []Load{off, on},
		Cable: Cable{Data: 1_234_567_890, Handshake: 4, Neighbour: 6, Missed: 1_234_567},
		Left:  &Stats{Lanes: lanes}, Right: &Stats{Lanes: lanes[:2], Drops: map[string]uint64{"hs_replay": 1}},
	}
}

func TestEveryFaultFailsTheDemo(t *testing.T) {
	good := goodReport()
	good.runChecks()
	if err := good.Err(); err != nil || !good.OK {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(*Report){
		"corrupt TCP":        func(r *Report) { r.Runs[0].TCP.Corrupt = 1 },
		"lost TCP":           func(r *Report) { r.Runs[1].TCP.LostBytes = 1 },
		"corrupt UDP":        func(r *Report) { r.Runs[1].UDP.Corrupt = 1 },
		"reordered":          func(r *Report) { r.Runs[0].UDP.Reordered = 1 },
		"reordered spread":   func(r *Report) { r.Runs[1].UDP.Reordered = 1 },
		"duplicated":         func(r *Report) { r.Runs[1].UDP.Duplicated = 1 },
		"a silent stream":    func(r *Report) { r.Runs[1].UDP.Streams = make([]traffic.Stream, 1) },
		"no stream":          func(r *Report) { r.Runs[1].TCP.Streams = nil },
		"no run":             func(r *Report) { r.Runs = nil },
		"one port":           func(r *Report) { r.Runs[1].SourcePorts = 1 },
		"one queue":          func(r *Report) { r.Runs[1].Queues = r.Runs[0].Queues },
		"another protocol":   func(r *Report) { r.Cable.Foreign = 1 },
		"plaintext":          func(r *Report) { r.Cable.Plaintext = 1 },
		"nothing on cable":   func(r *Report) { r.Cable = Cable{} },
		"no handshake there": func(r *Report) { r.Cable.Handshake = 0 },
	} {
		r := goodReport()
		breakIt(&r)
		r.runChecks()
		if r.OK || r.Err() == nil || !strings.Contains(r.Render(term.Style{}), "✗") {
			t.Errorf("%s: got a passed report, want a failed check", name)
		}
	}
}

func TestReportFits80Columns(t *testing.T) {
	r := goodReport()
	r.runChecks()
	for _, line := range strings.Split(r.Render(term.Style{}), "\n") {
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
}

func TestReportContainsEssentialResults(t *testing.T) {
	r := goodReport()
	r.runChecks()
	text := r.Render(term.Style{})
	for _, want := range []string{
		"123.40 Gbit/s", "9.87 Gbit/s, 0.0% lost", "0 reordered", "123µs", "12.5", "rx_replay 1,234, tx_no_peer 3", "hs_replay 1",
		"and 4 more lanes", "66.7%", "100.0%", "1,234,567 not captured", "to 2 of 64 queues",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "rx_auth") || strings.Contains(text, "\x1b") {
		t.Errorf("too much is in\n%s", text)
	}
	if colored := r.Render(term.Style{Color: true}); !strings.Contains(colored, "\x1b[32m✓\x1b[0m") {
		t.Errorf("no colour in %q", colored)
	}
}

// TestReportEndsWithTerminalChart compares the traffic and the chart with the expected text.
func TestReportEndsWithTerminalChart(t *testing.T) {
	run := func(title string, ports int, packets ...uint64) Load {
		r := Load{Spread: title, SourcePorts: ports}
		r.TCP.BitsPerSecond, r.UDP.BitsPerSecond, r.UDP.SentPackets = 4.5e9, 2.25e9, 1e6
		for _, n := range packets {
			r.Queues = append(r.Queues, netlab.QueueCount{Packets: n})
		}
		return r
	}
	r := Report{Streams: 8, QueueCount: 4, Runs: []Load{
		run(spreadOff, 1, 3, 1_200_000, 0, 0), run(spreadOn, 16, 300_000, 310_000, 290_000, 300_000),
	}}
	const want = `
  load          8 TCP streams over IPv4, then 8 of UDP over IPv6

                spread off                       spread on
  TCP           4.50 Gbit/s                      4.50 Gbit/s
  UDP           2.25 Gbit/s, 0.0% lost           2.25 Gbit/s, 0.0% lost
  UDP order     0 reordered                      0 reordered
  source ports  1                                16

  packets by receive queue of the right host
              0 ▏                      3   0.0%  ████             300,000  25.0%
              1 ████████████████  1.20 M 100.0%  ████▏            310,000  25.8%
              2                        0   0.0%  ███▉             290,000  24.2%
              3                        0   0.0%  ████             300,000  25.0%
  busiest queue 100.0%                           25.8%
`
	if text := r.Render(term.Style{}); !strings.HasSuffix(text, want) {
		t.Errorf("got\n%s\nwant at its end\n%s", text, want)
	}
}

func TestReportWithoutDaemonStatisticsOrQueues(t *testing.T) {
	r := Report{}
	r.runChecks()
	if text := r.Render(term.Style{}); !strings.Contains(text, "no statistics") || r.OK {
		t.Errorf("got %s, want %q in it", text, "no statistics")
	}
}

func TestReportIsJSON(t *testing.T) {
	r := goodReport()
	r.runChecks()
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
		{traffic.UDP, true, "UDP █████████░░░  3.0/4.0 s  2.00 Gbit/s  200 kpps  2 reordered"},
	} {
		got := progressLine(c.kind, 4*time.Second, last, now, c.bar)
		if got != c.want || utf8.RuneCountInString(got) > 79-len("spread off  ") {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

func TestLiveWithoutTerminalWritesALinePerSecond(t *testing.T) {
	var out bytes.Buffer
	l := &Live{Out: &out}
	phase := l.progress(traffic.TCP, 2*time.Second)
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
	l := &Live{Out: &out, Quiet: true}
	l.step("step")
	l.progress(traffic.TCP, time.Second)(traffic.Progress{Elapsed: time.Second})
	l.clear()
	if out.Len() != 0 {
		t.Errorf("got %q", out.String())
	}
}

func TestMeanOfNoValuesIsZero(t *testing.T) {
	if mean(1, 0) != "-" || mean(3, 2) != "1.5" {
		t.Errorf("got %q, %q, want %q, %q", mean(1, 0), mean(3, 2), "-", "1.5")
	}
}
