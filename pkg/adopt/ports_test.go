// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

func TestLanesAreTheFirstFreePorts(t *testing.T) {
	r := spread.Ports{First: 100, Last: 131}
	for _, tt := range []struct {
		name    string
		taken   []uint16
		cfg     Config
		current spread.Ports
		want    string
	}{
		{"all of the range", nil, Config{Ports: r}, spread.Ports{}, "100-131"},
		{"at most the maximum", nil, Config{Ports: spread.Ports{First: 100, Last: 999}}, spread.Ports{}, "100-163"},
		{"behind what is taken", []uint16{102}, Config{Ports: r, Lanes: 4}, spread.Ports{}, "103-106"},
		{"fewer when no number is wished", []uint16{110}, Config{Ports: r}, spread.Ports{}, "111-126"},
		{"one", []uint16{100, 102, 104}, Config{Ports: spread.Ports{First: 100, Last: 104}}, spread.Ports{}, "101-101"},
		{"none", []uint16{100, 102}, Config{Ports: spread.Ports{First: 100, Last: 102}, Lanes: 2}, spread.Ports{}, "no 2 neighbouring ports of 100-102 are free (100 belongs to x)"},
		{"what it has", []uint16{112}, Config{Ports: r, Lanes: 4}, spread.Ports{First: 110, Last: 113}, "110-113"},
		{"not what it has of another number", nil, Config{Ports: r, Lanes: 4}, spread.Ports{First: 110, Last: 114}, "100-103"},
		{"not what it has of another range", nil, Config{Ports: r, Lanes: 4}, spread.Ports{First: 130, Last: 133}, "100-103"},
		{"a plan", nil, Config{Ports: r, Plan: []uint16{131, 100}, Lanes: 2}, spread.Ports{}, "100-131"},
		{"a plan that is taken", []uint16{131}, Config{Ports: r, Plan: []uint16{131, 100}, Lanes: 2}, spread.Ports{}, "planned port 131 belongs to x"},
	} {
		c := claims{}
		for _, p := range tt.taken {
			c[p] = "x"
		}
		got, lanes, err := c.lanes(tt.cfg, tt.current)
		text := got.String()
		if err != nil {
			text = err.Error()
		} else if len(lanes) != got.Len() && tt.cfg.Plan == nil {
			t.Errorf("%s: %d lanes in %s", tt.name, len(lanes), got)
		}
		if !strings.HasPrefix(text, tt.want) {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}

func TestReservedPortsCoverTheRange(t *testing.T) {
	want := spread.Ports{First: 100, Last: 110}
	for list, covers := range map[string]bool{
		"": false, "\n": false, "100-110\n": true, "1,90-105,106-200": true, "100-104,106-110": false, "101-110": false,
		"100-109": false, "100-109,110": true, "x-y": false, "-": false, "100": false, "50-60000": true,
	} {
		if reserved(list, want) != covers {
			t.Errorf("%q: %v", list, !covers)
		}
	}
}

// FuzzReserved compares with asking for each port alone.
func FuzzReserved(f *testing.F) {
	f.Add("1,90-105,106-200", uint16(100), uint16(110))
	f.Add("100-104,106-110", uint16(100), uint16(110))
	f.Add("", uint16(1), uint16(1))
	f.Fuzz(func(t *testing.T, list string, first, last uint16) {
		if first == 0 || last < first || last-first > 300 {
			return
		}
		all := true
		for p := int(first); p <= int(last); p++ {
			all = all && reserved(list, spread.Ports{First: uint16(p), Last: uint16(p)})
		}
		if got := reserved(list, spread.Ports{First: first, Last: last}); got && !all {
			t.Errorf("%q has not all of %d-%d", list, first, last)
		}
	})
}

const table = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
 1185: 00000000:CA6C 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 27391 2 0000000000000000 0
 1186: 00000000000000000000000000000000:CA6D 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 27392 2 0 0
`

func TestSocketTableIsRead(t *testing.T) {
	owners := map[uint16]udpOwner{}
	if err := readSockets(strings.NewReader(table), owners); err != nil {
		t.Fatal(err)
	}
	want := map[uint16]udpOwner{51820: {inode: 27391}, 51821: {inode: 27392}}
	if diff := cmp.Diff(want, owners, cmp.AllowUnexported(udpOwner{})); diff != "" {
		t.Error(diff)
	}
}

func FuzzReadSockets(f *testing.F) {
	f.Add(table)
	f.Add("1: :: :: 07 a b c d e 18446744073709551616")
	f.Fuzz(func(t *testing.T, text string) {
		owners := map[uint16]udpOwner{}
		if err := readSockets(strings.NewReader(text), owners); err == nil && len(owners) > strings.Count(text, "\n")+1 {
			t.Error(fmt.Sprint(owners))
		}
	})
}
