// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/test/golden"
)

func TestScreensMatchGoldenFiles(t *testing.T) {
	f := between(tunnel(1, 4, 6), tunnel(2, 4, 6))
	f.Sort(ByDefault, false)
	for _, size := range [][2]int{{80, 24}, {120, 40}, {40, 10}} {
		for v := Overview; v <= Help; v++ {
			o := Options{Width: size[0], Height: size[1], View: v, Keys: true}
			text := f.Render(o)
			checkScreen(t, text, o)
			golden.Check(t, fmt.Sprintf("testdata/%s-%dx%d.golden", v, size[0], size[1]), text)
		}
	}
}

func TestSpecialScreensMatchGoldenFiles(t *testing.T) {
	busy, idle := between(tunnel(1, 40, 10_000), tunnel(2, 40, 10_000)), between(Sample{}, Sample{At: start(), Interface: "wg0"})
	busy.Sort(ByDefault, false)
	for name, tt := range map[string]struct {
		*Frame
		Options
	}{
		"once":     {between(tunnel(1, 2, 2), tunnel(2, 2, 2)), Options{Width: 100}},
		"ascii":    {between(tunnel(1, 2, 2), tunnel(2, 2, 2)), Options{Width: 80, ASCII: true}},
		"large":    {busy, Options{Width: 80, Height: 24, Keys: true}},
		"scrolled": {busy, Options{Width: 80, Height: 12, View: Peers, Scroll: 9_990, Keys: true}},
		"trouble":  {busy, Options{Width: 80, Height: 12, Keys: true, Paused: true, Note: "the daemon\nis gone"}},
		"nothing":  {idle, Options{Width: 80}},
		"noqueues": {idle, Options{Width: 80, View: Queues}},
	} {
		text := tt.Render(tt.Options)
		checkScreen(t, text, tt.Options)
		golden.Check(t, "testdata/"+name+".golden", text)
	}
}

func TestColorAddsOnlySGRSequences(t *testing.T) {
	f := between(tunnel(1, 4, 6), tunnel(2, 4, 6))
	for v := Overview; v <= Help; v++ {
		o := Options{Width: 80, Height: 24, View: v, Keys: true}
		want := f.Render(o)
		o.Color = true
		got := f.Render(o)
		if got == want {
			t.Errorf("%s: no colours", v)
		}
		for s := plain + 1; s <= reverse; s++ {
			got = strings.ReplaceAll(got, s.sgr(), "")
		}
		if got = strings.ReplaceAll(got, sgrReset, ""); got != want {
			t.Errorf("%s (-want +got): %s", v, cmp.Diff(want, got))
		}
	}
}

func TestNamesOfPeersKeepTheirLetters(t *testing.T) {
	f := between(tunnel(1, 2, 3), tunnel(2, 2, 3))
	for i, name := range []string{"Zo\u00eb's phone", "\u4f1a\u8bae\u5ba4", "bad\x1b[31m\u202eevil"} {
		f.Peers[i].Name = name
	}
	for want, o := range map[string]Options{
		"\u00eb's phone": {Width: 100, View: Peers}, "\u4f1a\u8bae\u5ba4": {Width: 100, View: Peers}, "Zo?'s phone": {Width: 100, View: Peers, ASCII: true},
		"??????": {Width: 100, View: Peers, ASCII: true}, "bad?[31m?evil": {Width: 100, View: Peers},
	} {
		text := f.Render(o)
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
		var at []int
		for l := range strings.Lines(text) {
			if before, _, ok := strings.Cut(l, "[2001:db8::1]"); ok {
				at = append(at, columns(before))
			}
		}
		if len(at) != 3 || len(slices.Compact(at)) != 1 {
			t.Errorf("endpoints are at columns %v, want the same for three:\n%s", at, text)
		}
	}
}

func TestScrollingReachesTheLastRow(t *testing.T) {
	f := between(tunnel(1, 2, 300), tunnel(2, 2, 300))
	o := Options{Width: 80, Height: 20, View: Peers, Keys: true}
	o.Scroll = f.MaxScroll(o)
	if text := f.Render(o); !strings.Contains(text, "00299PEER") {
		t.Errorf("at the end:\n%s", text)
	}
	o.Scroll--
	if text := f.Render(o); strings.Contains(text, "00299PEER") {
		t.Errorf("one before the end:\n%s", text)
	}
}

func TestScrollingKeepsTitlesOfTableInSight(t *testing.T) {
	f := between(tunnel(1, 40, 0), tunnel(2, 40, 0))
	o := Options{Width: 80, Height: 7, View: Lanes, Keys: true}
	first := func() string {
		return strings.Split(f.Render(o), "\n")[len((&renderer{Options: o, frame: f}).header())]
	}
	if o.Scroll = 3; !strings.HasPrefix(first(), "LANE") || !strings.Contains(first(), "DROPS/s") {
		t.Errorf("in the first table: got titles %q", first())
	}
	if o.Scroll = f.MaxScroll(o); !strings.Contains(first(), "33-64") {
		t.Errorf("in the second table: got titles %q", first())
	}
	for o.Scroll = range f.MaxScroll(o) {
		if text := f.Render(o); strings.Count(text, "33-64") > 1 {
			t.Errorf("twice the same titles:\n%s", text)
		}
	}
}

func TestDivideIsFair(t *testing.T) {
	for _, tt := range []struct {
		needs []int
		total int
		want  []int
	}{
		{[]int{3, 3}, 10, []int{3, 3}},
		{[]int{100, 3}, 10, []int{7, 3}},
		{[]int{100, 100, 2}, 10, []int{4, 4, 2}},
		{[]int{5}, 0, []int{0}},
		{nil, 5, []int{}},
	} {
		if got := divide(tt.needs, tt.total); !cmp.Equal(got, tt.want) {
			t.Errorf("%v of %d: got %v, want %v", tt.needs, tt.total, got, tt.want)
		}
	}
}

func TestOverviewKeepsBusiestRows(t *testing.T) {
	f := between(tunnel(1, 40, 0), tunnel(2, 40, 0))
	text := f.Render(Options{Width: 80, Height: 16})
	if !strings.Contains(text, "\n39 ") || strings.Contains(text, "\n0 ") || !strings.Contains(text, " more\n") {
		t.Errorf("the busiest of 40 lanes are not shown:\n%s", text)
	}
}
