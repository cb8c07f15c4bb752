// SPDX-License-Identifier: Apache-2.0

package top

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

func start() time.Time { return time.Unix(1_800_000_000, 0).UTC() }

// tunnel returns a sample after n seconds of constant traffic.
func tunnel(n uint64, lanes, peers int) Sample {
	s := Sample{At: start().Add(time.Duration(n) * time.Second), Interface: "wg0", PublicKey: "self", ListenPort: 51820, Flows: flowsAfter(n)}
	s.Stats = device.Stats{Up: true, Stats: engine.Stats{Drops: map[string]uint64{"hs_replay": n}}}
	s.Stats.TUN.TSO, s.Stats.TUN.USO, s.Stats.Underlay.GSO, s.Stats.Underlay.GRO = true, true, true, true
	for i := range uint64(lanes) {
		l := engine.LaneStats{
			RxBytes: n * (i + 1) * 10e6, RxPackets: n * (i + 1) * 8e3, RxTrains: n * (i + 1) * 250, RxRuns: n * (i + 1) * 200,
			TxBytes: n * 1e6, TxPackets: n * 1e3, TxTrains: n * 1e3, TxRuns: n * 500,
			Drops: map[string]uint64{"rx_auth": n * i},
		}
		l.RxRunSizes.Runs[5], l.RxRunSizes.Messages = n*200, n*200*30
		l.TxRunSizes.Runs[1], l.TxRunSizes.Messages = n*500, n*1000
		l.RxWorkers.Done = n * 50
		s.Stats.Lanes = append(s.Stats.Lanes, l)
		s.Host.Cores = append(s.Host.Cores, CoreCounters{CPU: int(i), Busy: n * (20 + i), SoftIRQ: n * 5, Total: n * 100, NetRx: n * 700})
		s.Host.Queues = append(s.Host.Queues, QueueCounters{
			Device: "eth0", Queue: int(i), Rx: PacketCounters{Packets: n * (i + 1) * 9e3, Bytes: n * (i + 1) * 12e6, Known: true},
			Tx: PacketCounters{Packets: n * 100, Bytes: n * 9000, Known: true}, Interrupts: map[int]uint64{int(i): n * 300, 99: n * 100},
		})
	}
	for i := range peers {
		s.Peers = append(s.Peers, PeerCounters{
			PublicKey: fmt.Sprintf("%05dPEERKEYPEERKEYPEERKEYPEERKEYPEERKEYPEER=", i), Endpoint: "[2001:db8::1]:51820",
			LastHandshake: start(), RxBytes: n * uint64(i+1) * 1e6, TxBytes: n * 5e5,
			Spread: config.PeerSpread{Active: i%2 == 0, Ports: 64, Planned: i%4 == 0}, PostQuantum: [...]config.PeerPostQuantum{
				{Policy: config.PostQuantumAuto, Active: true, Age: 41},
				{Policy: config.PostQuantumAuto},
				{Policy: config.PostQuantumOff},
				{Policy: config.PostQuantumRequired, Blocked: true},
				{Policy: config.PostQuantumAuto, Downgraded: true},
				{Policy: config.PostQuantumAuto, Active: true, Age: 900, Stale: true},
			}[i%6],
		})
	}
	return s
}

func TestFeaturesBeginWithUnderlayMode(t *testing.T) {
	for want, underlay := range map[string]config.UnderlayReport{
		"udp": {}, "xdp copy": {Path: config.UnderlayXDP, How: "copy", Device: "eth0"}, "xdp": {Path: config.UnderlayXDP},
	} {
		s := tunnel(1, 1, 0)
		s.Stats.Path = underlay
		if got := between(Sample{}, s).Features[0]; got != want {
			t.Errorf("%+v: got %q, want %q", underlay, got, want)
		}
	}
	if got := between(Sample{}, Sample{}).Features; len(got) != 0 {
		t.Errorf("down: got %q, want length 0", got)
	}
}

func between(a, b Sample) *Frame { return Compare(&a, &b) }

func TestCompareComputesRates(t *testing.T) {
	a, b := tunnel(10, 2, 2), tunnel(12, 2, 2)
	f := between(a, b)
	want := Flow{
		Bytes: 36 * 10e6, Packets: 36 * 8e3, ByteRate: 30e6, PacketRate: 24e3, PerTrain: 32, PerBatch: 30, WorkerRate: 100,
		BatchSizes: [8]float64{5: 1},
	}
	got := f.Rx
	got.packets, got.trains, got.batches, got.batchMessages = 0, 0, 0, 0
	if got != want {
		t.Errorf("received: got %+v, want %+v", got, want)
	}
	if f.Tx.ByteRate != 2e6 || f.Tx.PerTrain != 1 || f.Tx.PerBatch != 2 {
		t.Errorf("sent: got %+v, want ByteRate 2e6, PerTrain 1, PerBatch 2", f.Tx)
	}
	if p := f.Peers[1]; p.RxRate != 2e6 || p.TxRate != 5e5 || p.Handshake != 12 || p.Share != 2.5/4 {
		t.Errorf("peer: got %+v, want RxRate 2e6, TxRate 5e5, Handshake 12, Share %v", p, 2.5/4)
	}
	if q := f.Queues[1]; q.Rx.PacketRate != 18e3 || q.Rx.ByteRate != 24e6 || q.Interrupts != 400 || q.Share != 2.0/3 ||
		!cmp.Equal(q.Cores, []CPUShare{{1, 0.75}, {99, 0.25}}) {
		t.Errorf("queue: %+v", q)
	}
	if c := f.Cores[1]; c.Busy != 0.21 || c.SoftIRQ != 0.05 || c.NetRx != 700 {
		t.Errorf("core: got %+v, want Busy 0.21, SoftIRQ 0.05, NetRx 700", c)
	}
	if f.Lanes[1].DropRate != 1 || len(f.Drops) != 2 || f.Drops[0].Rate != 1 || f.Drops[1].Help == "" {
		t.Errorf("drops: got %+v, %+v, want length 2", f.Lanes[1], f.Drops)
	}
	if b := f.Balance; b.Lanes != (Balance{21.0 / 16, "1"}) || b.Queues != (Balance{4.0 / 3, "eth0 1"}) || b.Cores.Busiest != "cpu1" {
		t.Errorf("balance: got %+v, want Lanes %v, Queues %v, Cores.Busiest \"cpu1\"", b, (Balance{21.0 / 16, "1"}), (Balance{4.0 / 3, "eth0 1"}))
	}
}

func TestOneSampleHasNoRates(t *testing.T) {
	b := tunnel(12, 2, 2)
	for name, before := range map[string]Sample{"none": {}, "of another interface": {At: start(), Interface: "wg1"}, "itself": b} {
		f := between(before, b)
		if f.Seconds != 0 || f.Rx.ByteRate != 0 || f.Peers[0].RxRate != 0 || f.Cores[0].Busy != 0 || f.Queues[0].Interrupts != 0 ||
			f.Drops[0].Rate != 0 || f.Rx.Bytes == 0 {
			t.Errorf("%s: got %+v", name, f)
		}
	}
}

func TestCounterResetCountsFromZero(t *testing.T) {
	a, b := tunnel(1000, 2, 1), tunnel(2, 2, 1)
	b.At = a.At.Add(time.Second)
	f := between(a, b)
	if f.Lanes[0].Rx.ByteRate != 20e6 || f.Peers[0].RxRate != 2e6 || f.Drops[0].Rate != 2 {
		t.Errorf("after a restart: %+v, %+v", f.Lanes[0], f.Peers[0])
	}
}

func TestNewRowsHaveNoRate(t *testing.T) {
	a, b := tunnel(10, 1, 1), tunnel(11, 3, 2)
	f := between(a, b)
	if f.Lanes[2].Rate() != 0 || f.Peers[1].Rate() != 0 || f.Cores[2].Busy != 0 || f.Queues[2].Rx.PacketRate != 0 {
		t.Errorf("new: %+v, %+v, %+v, %+v", f.Lanes[2], f.Peers[1], f.Cores[2], f.Queues[2])
	}
}

// TestRandomSamplesGiveFiniteNumbers uses counters of any kind, and times that go back.
func TestRandomSamplesGiveFiniteNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		f := between(randomSample(r), randomSample(r))
		text, err := json.Marshal(f) // refuses NaN and infinities
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), ":null") || strings.Contains(strings.ReplaceAll(string(text), `"handshake_age_seconds":-1`, ""), `:-`) {
			t.Fatalf("null or negative: %s", text)
		}
		f.Sort(Order(r.IntN(int(orderCount))), r.IntN(2) == 0)
		checkScreens(t, f, r)
	}
}

func randomSample(r *rand.Rand) Sample {
	big := func() uint64 {
		return [...]uint64{0, 1, math.MaxUint64, math.MaxUint64 - 1, r.Uint64(), uint64(r.IntN(1000))}[r.IntN(6)]
	}
	s := tunnel(uint64(r.IntN(100)), r.IntN(4), r.IntN(4))
	s.At = start().Add(time.Duration(r.IntN(5)-2) * []time.Duration{0, 1, time.Microsecond, time.Second, 1000 * time.Hour}[r.IntN(5)])
	s.Interface = []string{"wg0", "wg\x1b[2J\x00\u202e", "接口", strings.Repeat("x", 500), ""}[r.IntN(5)]
	for i := range s.Stats.Lanes {
		s.Stats.Lanes[i].RxBytes, s.Stats.Lanes[i].RxPackets, s.Stats.Lanes[i].RxTrains = big(), big(), big()
		s.Stats.Lanes[i].RxRunSizes.Runs[7], s.Stats.Lanes[i].RxRunSizes.Messages = big(), big()
	}
	for i := range s.Peers {
		s.Peers[i].RxBytes, s.Peers[i].PublicKey, s.Peers[i].Endpoint = big(), "\x1b]0;x\a"+s.Peers[i].PublicKey, "\r\n"
		s.Peers[i].LastHandshake = []time.Time{{}, start(), time.Unix(1<<40, 0), time.Unix(0, 0)}[r.IntN(4)]
	}
	for i := range s.Host.Cores {
		s.Host.Cores[i].Busy, s.Host.Cores[i].Total, s.Host.Cores[i].SoftIRQ = big(), big(), big()
	}
	for i := range s.Host.Queues {
		q := &s.Host.Queues[i]
		q.Device, q.Rx.Packets, q.Interrupts = "eth\x1b0", big(), map[int]uint64{r.IntN(3): big()}
	}
	s.Stats.Drops = map[string]uint64{"\x1b[31mred\n": big()}
	return s
}

// checkScreens draws a frame in every way at a size, and finds what a terminal could not show.
func checkScreens(t *testing.T, f *Frame, r *rand.Rand) {
	t.Helper()
	for v := Overview; v <= Help; v++ {
		o := Options{Width: r.IntN(150), Height: 1 + r.IntN(50), View: v, Scroll: r.IntN(100) - 10, Keys: r.IntN(2) == 0, Paused: r.IntN(2) == 0, ASCII: r.IntN(2) == 0}
		checkScreen(t, f.Render(o), o)
		f.MaxScroll(o)
		o.Height = 0
		checkScreen(t, f.Render(o), o)
	}
}

func checkScreen(t *testing.T, text string, o Options) {
	t.Helper()
	if text != "" && !strings.HasSuffix(text, "\n") {
		t.Fatalf("%+v: the last line does not end:\n%s", o, text)
	}
	if n := strings.Count(text, "\n"); o.Height > 0 && n > o.Height {
		t.Fatalf("%+v: %d lines", o, n)
	}
	for _, l := range strings.Split(text, "\n") {
		if n := columns(l); n > o.Width {
			t.Fatalf("%+v: a line of %d columns: %q", o, n, l)
		}
		for _, c := range l {
			if !unicode.IsPrint(c) || o.ASCII && c > unicode.MaxASCII {
				t.Fatalf("%+v: %q in %q", o, c, l)
			}
		}
	}
}

func TestSamplesHoldNoSecrets(t *testing.T) {
	private, err := noise.NewPrivateKey(strings.NewReader(strings.Repeat("p", 64)))
	if err != nil {
		t.Fatal(err)
	}
	var psk noise.PresharedKey
	copy(psk[:], strings.Repeat("s", len(psk)))
	st := config.Status{Name: "wg0", PrivateKey: private, PublicKey: private.Public(), Peers: []config.PeerStatus{{
		PublicKey: private.Public(), PresharedKey: psk, Endpoint: config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.1:1")},
	}}}
	s := SampleOf(&st, device.Stats{}, HostCounters{}, start())
	text := fmt.Sprintf("%+v %#v", s, s)
	if b, err := json.Marshal(Compare(&Sample{}, &s)); err == nil {
		text += string(b)
	}
	for _, secret := range []string{private.Base64(), private.Hex(), psk.Base64(), psk.Hex()} {
		if strings.Contains(text, secret) {
			t.Errorf("found a secret in %s", text)
		}
	}
	if s.Peers[0].Endpoint != "192.0.2.1:1" || s.PublicKey == "" {
		t.Errorf("the sample is %+v", s)
	}
}

func TestSortOrders(t *testing.T) {
	for _, tt := range []struct {
		order   Order
		reverse bool
		peers   string
		lanes   string
	}{
		{ByDefault, false, "3210", "012slow"},
		{ByRate, false, "3210", "210slow"},
		{ByRate, true, "0123", "slow012"},
		{ByReceived, false, "3210", "210slow"},
		{BySent, false, "0123", "012slow"},
		{ByName, false, "0123", "012slow"},
		{ByName, true, "3210", "slow210"},
	} {
		f := between(tunnel(1, 3, 4), tunnel(2, 3, 4))
		f.Sort(tt.order, tt.reverse)
		peers, lanes := "", ""
		for _, p := range f.Peers {
			peers += p.PublicKey[4:5]
		}
		for _, l := range f.Lanes {
			lanes += l.Name
		}
		if peers != tt.peers || lanes != tt.lanes {
			t.Errorf("%s, reverse %t: peers %s, lanes %s", tt.order, tt.reverse, peers, lanes)
		}
	}
}

func TestNumberFormats(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{bits(0), "0 b/s"},
		{bits(0.01), "0 b/s"},
		{bits(125), "1.00 kb/s"},
		{bits(124.9), "999 b/s"},
		{bits(1.25e9), "10.0 Gb/s"},
		{bits(124.99e6), "1.00 Gb/s"},
		{bits(125e6), "1.00 Gb/s"},
		{bytes(1023), "1023 B"},
		{bytes(1 << 20), "1.00 MiB"},
		{bytes(math.MaxUint64), "16.0 EiB"},
		{count(12), "12"},
		{count(1234), "1.23 k"},
		{average(0), "-"},
		{average(42.64), "42.6"},
		{average(1234), "1234"},
		{ageText(-1), "never"},
		{ageText(0), "0s"},
		{ageText(61), "1m01s"},
		{ageText(3600), "1h00m"},
		{ageText(90000), "1d01h"},
		{ageText(1e300), "11574d01h"},
		{bar(0, 4, false), "    "},
		{bar(1e-9, 4, false), "▏   "},
		{bar(0.5, 4, false), "██  "},
		{bar(0.59, 4, false), "██▍ "},
		{bar(7, 4, false), "████"},
		{bar(0, 4, true), "...."},
		{bar(0.01, 4, true), "#..."},
		{bar(1, 4, true), "####"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}
