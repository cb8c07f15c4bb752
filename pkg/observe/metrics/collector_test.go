// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/test/golden"
)

// scrapeText returns a scrape of d in the text format.
func scrapeText(t testing.TB, d Device, o Options) string {
	t.Helper()
	return collected(t, NewCollector(FromDevice(d, func() time.Time { return testNow }), o))
}

// collected returns the metrics of a collector in the text format.
func collected(t testing.TB, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// samples returns the lines of a scrape without comments.
func samples(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

func TestScrapeMatchesGoldenFile(t *testing.T) {
	golden.Check(t, filepath.Join("testdata", "scrape.txt"), scrapeText(t, newFake(), Options{}))
	golden.Check(t, filepath.Join("testdata", "scrape-wireguard-names.txt"),
		scrapeText(t, newFake(), Options{PerPeer: PerPeerOn, WireGuardNames: true}))
}

func TestScrapePassesPromtool(t *testing.T) {
	checkByPromtool(t, scrapeText(t, newFake(), Options{}))
}

// checkByPromtool runs `promtool check metrics` on a scrape.
func checkByPromtool(t *testing.T, text string) {
	t.Helper()
	cmd := promtool(t, "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestScrapeHasNoSecretAndEndpointsOnlyInInfo(t *testing.T) {
	text := scrapeText(t, newFake(), Options{PerPeer: PerPeerOn, WireGuardNames: true})
	for _, secret := range []string{
		testPrivateKey.Base64(), testPrivateKey.Hex(), testPresharedKey.Base64(), testPresharedKey.Hex(),
	} {
		if strings.Contains(text, secret) {
			t.Error("a secret key is in the scrape")
		}
	}
	for _, line := range samples(text) {
		if strings.Contains(line, "2001:db8") != (strings.HasPrefix(line, "ropewalk_peer_info{") && strings.Contains(line, `endpoint="[`)) {
			t.Error(line)
		}
		if strings.Contains(line, "10.0.0.") && !strings.HasPrefix(line, "ropewalk_peer_info{") && !strings.HasPrefix(line, "wireguard_") {
			t.Error(line)
		}
	}
}

func TestManyPeersAreAggregatedUnlessConfigured(t *testing.T) {
	for _, tt := range []struct {
		peers int
		mode  PerPeer
		each  bool
	}{
		{0, PerPeerAuto, true},
		{MaxPeers, PerPeerAuto, true},
		{MaxPeers + 1, PerPeerAuto, false},
		{MaxPeers + 1, PerPeerOn, true},
		{1, PerPeerOff, false},
	} {
		d := newFake()
		d.status.Peers = nil
		for n := range tt.peers {
			d.status.Peers = append(d.status.Peers, fakePeer(n, time.Minute))
		}
		text := scrapeText(t, d, Options{PerPeer: tt.mode, WireGuardNames: true})
		want := 0
		if tt.each {
			want = 17 * tt.peers
		}
		keys := 0
		for _, line := range samples(text) {
			if strings.Contains(line, "public_key") && !strings.HasPrefix(line, "ropewalk_interface_info") {
				keys++
			}
		}
		if keys != want {
			t.Errorf("%d peers, %v: %d series have a peer's key, want %d", tt.peers, tt.mode, keys, want)
		}
		if all := fmt.Sprintf("ropewalk_peers{interface=\"wg0\",state=\"established\"} %d\n", tt.peers); !strings.Contains(text, all) {
			t.Errorf("%d peers, %v: no %s", tt.peers, tt.mode, all)
		}
		if one := fmt.Sprintf("ropewalk_peers_aggregated{interface=\"wg0\"} %v\n", boolValue(!tt.each)); !strings.Contains(text, one) {
			t.Errorf("%d peers, %v: no %s", tt.peers, tt.mode, one)
		}
	}
}

func TestNumberOfSeriesIsBounded(t *testing.T) {
	d := newFake()
	for range config.MaxLanes - len(d.stats.Lanes) {
		d.stats.Lanes = append(d.stats.Lanes, fakeLane(3))
	}
	d.stats.Path.XDP = make([]config.XDPLane, config.MaxLanes)
	for n := range manyPeers {
		d.status.Peers = append(d.status.Peers, fakePeer(n, time.Minute))
	}
	// Per lane 12, 8 for worker jobs and 11 for XDP; 10 buckets per direction; one per drop reason; and 48 for the device.
	if n, most := len(samples(scrapeText(t, d, Options{}))), config.MaxLanes*(12+8+11)+11+2*10+2*int(drop.Count)+48; n > most {
		t.Errorf("got %d series, want %d at most", n, most)
	}
}

const manyPeers = 1 << 16

func TestLabelOfManyAllowedIPsIsShortened(t *testing.T) {
	var all []netip.Prefix
	for n := range 1000 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0}), 24))
	}
	if got, want := prefixes(all[:18], maxPrefixes), "10.0.14.0/24,10.0.15.0/24,+2"; !strings.HasSuffix(got, want) {
		t.Errorf("%q does not end in %q", got, want)
	}
	if got := prefixes(all[:2], maxPrefixes); got != "10.0.0.0/24,10.0.1.0/24" {
		t.Error(got)
	}
	if got := prefixes(nil, maxPrefixes); got != "" {
		t.Error(got)
	}
	if got := strings.Count(prefixes(all, len(all)), ","); got != 999 {
		t.Error(got)
	}
}

func TestEveryDropReasonHasOneSeriesAndStage(t *testing.T) {
	text := scrapeText(t, newFake(), Options{})
	for r := drop.None + 1; r < drop.Count; r++ {
		label := fmt.Sprintf("ropewalk_dropped_packets_total{interface=\"wg0\",reason=%q", r)
		if n := strings.Count(text, label); n != 1 {
			t.Errorf("%v: got %d series, want 1", r, n)
		}
		switch s := stage(r.String()); s {
		case "transmit", "receive", "handshake", "hello", "exchange":
		default:
			t.Errorf("%v: stage %q", r, s)
		}
	}
	// Two lanes with 10 each, the slow lane's 2, and 1 of the device.
	if want := "reason=\"tx_send_error\",stage=\"transmit\"} 23\n"; !strings.Contains(text, want) {
		t.Errorf("no %s", want)
	}
}

func TestDropsByLaneEqualDropsByReason(t *testing.T) {
	var byLane, byReason float64
	for _, line := range samples(scrapeText(t, newFake(), Options{})) {
		var v float64
		_, value, _ := strings.Cut(line, "} ")
		if _, err := fmt.Sscan(value, &v); err != nil {
			t.Fatal(line, err)
		}
		switch name, _, _ := strings.Cut(line, "{"); name {
		case "ropewalk_lane_dropped_packets_total":
			byLane += v
		case "ropewalk_dropped_packets_total":
			byReason += v
		}
	}
	if byLane != byReason || byLane == 0 {
		t.Errorf("%v by lane, %v by reason", byLane, byReason)
	}
}

func TestInterfaceNameIsEscapedInLabels(t *testing.T) {
	d := newFake()
	d.status.Name = "a\xff\"\n"
	if text := scrapeText(t, d, Options{}); !strings.Contains(text, `interface="a`+"\uFFFD"+`\"\n"`) {
		t.Errorf("got %.200s, want %q in it", text, `interface="a`+"\uFFFD"+`\"\n"`)
	}
}

func TestReadyNeedsInterfaceUpAndPrivateKey(t *testing.T) {
	d := newFake()
	if err := Ready(d); err != nil {
		t.Error(err)
	}
	d.status.PublicKey = fakeKey(0)
	d.stats.Up = false
	if err := Ready(d); !errors.Is(err, errDown) {
		t.Error(err)
	}
	d.stats.Up, d.status.PublicKey = true, [32]byte{}
	if err := Ready(d); !errors.Is(err, errNoKey) {
		t.Error(err)
	}
}

func TestPerPeerParsesNamesInAnyCase(t *testing.T) {
	for _, mode := range []PerPeer{PerPeerAuto, PerPeerOn, PerPeerOff} {
		text, _ := mode.MarshalText()
		got := PerPeer(9)
		if err := got.UnmarshalText(bytes.ToUpper(text)); err != nil || got != mode {
			t.Errorf("%s: got %v, error %v, want %v, no error", text, got, err, mode)
		}
	}
	var p PerPeer
	if p != PerPeerAuto || p.UnmarshalText([]byte("sometimes")) == nil {
		t.Error("an unknown mode is accepted")
	}
}
