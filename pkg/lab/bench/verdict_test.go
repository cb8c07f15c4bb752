// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// evenParts cost a tenth of a core per Gbit/s each; the tunnel costs half a core.
func evenParts() Parts {
	return Parts{
		Cores: 2, Seal: 20, Open: 20, TUNRead: 20, TUNWrite: 20, UnderlaySend: 20, UnderlayRecv: 20,
		RawGbps: 20, GeneratorCoresGbps: 0.1,
		Tunnel: []Throughput{{1, 1, 2, 1.5}, {1, 4, 3, 1.9}, {2, 1, 3.5, 1.9}, {2, 4, 4, 2}},
	}
}

func TestVerdictNamesTheLargestPart(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Parts)
		want   Limit
	}{
		{"crypto", func(p *Parts) { p.Seal = 5 }, LimitCrypto},
		{"opening alone", func(p *Parts) { p.Open = 5 }, LimitCrypto},
		{"TUN", func(p *Parts) { p.TUNWrite = 5 }, LimitTUN},
		{"TUN with cold caches", func(p *Parts) { p.NullTunnelCoresGbps = 0.3 }, LimitTUN},
		{"underlay", func(p *Parts) { p.UnderlayRecv = 5 }, LimitUnderlay},
		{"underlay on two threads", func(p *Parts) { p.PairCoresGbps = 0.2 }, LimitUnderlay},
		{"generator", func(p *Parts) { p.GeneratorCoresGbps = 0.2 }, LimitGenerator},
		{"rest over a half", func(p *Parts) { p.Seal, p.Open, p.TUNRead, p.TUNWrite = 100, 100, 100, 100 }, LimitRest},
		{"rest below a half", func(p *Parts) { p.Seal, p.TUNRead, p.TUNWrite = 18, 40, 40 }, LimitCrypto},
		{"no parts measured", func(p *Parts) { *p = Parts{Cores: 2, Tunnel: p.Tunnel} }, LimitUnknown},
		{"one part not measured", func(p *Parts) { p.Open = 0 }, LimitUnknown},
		{"no parts measured, idle cores", func(p *Parts) { *p = Parts{Cores: 8, Tunnel: p.Tunnel} }, LimitIdle},
		{"idle cores", func(p *Parts) { p.Cores = 8 }, LimitIdle},
		{"parts that cost more than the whole", func(p *Parts) { p.Seal, p.TUNRead = 0.5, 1 }, LimitCrypto},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := evenParts()
			c.change(&p)
			v, ok := NewVerdict(p)
			if !ok || v.Limit != c.want {
				t.Errorf("got %q, want %q: %+v", v.Limit, c.want, v.Shares)
			}
			if !p.complete() {
				if text := strings.Join(v.Text(2), "\n"); v.Shares == nil || len(v.Shares) > 0 || strings.Contains(text, "estimated: ") {
					t.Errorf("shares without all parts:\n%s", text)
				}
				return
			}
			checkShares(t, v.Shares)
		})
	}
}

// checkShares wants the whole, in order.
func checkShares(t *testing.T, shares []Share) {
	t.Helper()
	sum, last := 0.0, math.Inf(1)
	for _, s := range shares {
		if s.Percent < 0 || s.Percent > last {
			t.Errorf("shares %+v", shares)
		}
		sum, last = sum+s.Percent, s.Percent
	}
	if math.Abs(sum-100) > 1e-6 {
		t.Errorf("shares sum up to %v", sum)
	}
}

func TestVerdictReportsBestThroughput(t *testing.T) {
	v, _ := NewVerdict(evenParts())
	want := Verdict{
		Best: Throughput{2, 4, 4, 2}, One: Throughput{2, 1, 3.5, 1.9},
		ByLanes: []Throughput{{1, 4, 3, 1.9}, {2, 4, 4, 2}},
		Limit:   v.Limit, Shares: v.Shares, OneEndGbps: 10, // 2 cores / ((0.5 - 0.1) / 2)
	}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Error(diff)
	}
}

func TestOneEndIsUnknownWithoutTheGenerator(t *testing.T) {
	p := evenParts()
	p.GeneratorCoresGbps = 0
	if v, _ := NewVerdict(p); v.OneEndGbps != 0 {
		t.Errorf("%v Gbit/s, with the generator's share", v.OneEndGbps)
	}
}

func TestVerdictNeedsThroughput(t *testing.T) {
	if _, ok := NewVerdict(Parts{Cores: 2, Seal: 1}); ok {
		t.Error("a verdict on nothing")
	}
}

func TestVerdictDescribesEachLimit(t *testing.T) {
	v, _ := NewVerdict(evenParts())
	seen := map[string]bool{}
	for _, l := range []Limit{LimitCrypto, LimitTUN, LimitUnderlay, LimitGenerator, LimitRest, LimitIdle, LimitUnknown} {
		v.Limit = l
		text := strings.Join(v.Text(2), "\n")
		if seen[text] || !strings.Contains(text, "about 4 Gbit/s of TCP through one tunnel (4 streams, 2 lanes; 2.0 of 2 cores busy)") ||
			!strings.Contains(text, "3 with 1 lane, 3.5 with one stream") {
			t.Errorf("%s:\n%s", l, text)
		}
		seen[text] = true
	}
}

func TestPartsComeFromTheReport(t *testing.T) {
	got := PartsOf(exampleReport())
	want := Parts{
		Cores: 4, Seal: 17.6, Open: 19.2, TUNRead: 300, TUNWrite: 250, UnderlaySend: 245, UnderlayRecv: 270,
		RawGbps: 27, GeneratorCoresGbps: 0.07, NullTunnelCoresGbps: 0.12, PairCoresGbps: 0.02,
		Tunnel: []Throughput{{1, 1, 3.38, 1.9}, {1, 4, 4.2, 2.1}, {4, 1, 3.4, 2}, {4, 4, 9.81, 3.9}},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })); diff != "" {
		t.Error(diff)
	}
}
