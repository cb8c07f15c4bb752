// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func TestLanesAreTheFirstFreePorts(t *testing.T) {
	r := spread.Ports{First: 100, Last: 131}
	between := func(first, last uint16) []uint16 { return spread.Ports{First: first, Last: last}.All() }
	for _, tt := range []struct {
		name    string
		taken   []uint16
		cfg     Config
		current []uint16
		want    []uint16
		fault   string
	}{
		{"all of the range", nil, Config{Ports: r}, nil, between(100, 131), ""},
		{"at most the maximum", nil, Config{Ports: spread.Ports{First: 100, Last: 999}}, nil, between(100, 163), ""},
		{"behind what is taken", []uint16{102}, Config{Ports: r, Lanes: 4}, nil, between(103, 106), ""},
		{"fewer when no number is wished", []uint16{110}, Config{Ports: r}, nil, between(111, 126), ""},
		{"one", []uint16{100, 102, 104}, Config{Ports: spread.Ports{First: 100, Last: 104}}, nil, between(101, 101), ""},
		{
			"none",
			[]uint16{100, 102},
			Config{Ports: spread.Ports{First: 100, Last: 102}, Lanes: 2},
			nil, nil,
			"no 2 contiguous ports of 100-102 are free (100 belongs to x)",
		},
		{"its present ports", []uint16{112}, Config{Ports: r, Lanes: 4}, between(110, 113), between(110, 113), ""},
		{"not what it has of another number", nil, Config{Ports: r, Lanes: 4}, between(110, 114), between(100, 103), ""},
		{"not what it has of another range", nil, Config{Ports: r, Lanes: 4}, between(130, 133), between(100, 103), ""},
		{"not what was planned", nil, Config{Ports: r, Lanes: 3}, []uint16{105, 107, 109}, between(100, 102), ""},
		{"its present ports, among ports planned by peers", nil, Config{Ports: r, Lanes: 4, PeerPlans: map[netip.AddrPort][]uint16{}}, append(between(110, 113), 115, 120), between(110, 113), ""},
		{"nothing of what peers alone plan", nil, Config{Ports: r, Lanes: 4, PeerPlans: map[netip.AddrPort][]uint16{}}, []uint16{105, 106, 107, 109}, between(100, 103), ""},
		{"a plan", []uint16{101, 130}, Config{PortPlan: []uint16{131, 100}}, nil, []uint16{131, 100}, ""},
		{"a plan that is taken", []uint16{131}, Config{PortPlan: []uint16{131, 100}}, nil, nil, "planned port 131 belongs to x"},
		{"a plan that is taken beside its own", []uint16{131}, Config{PortPlan: []uint16{131, 100}}, []uint16{130, 132}, nil, "planned port 131 belongs to x"},
	} {
		c := portOwners{}
		for _, p := range tt.taken {
			c[p] = "x"
		}
		got, err := c.chooseLanePorts(tt.cfg, tt.current)
		if !slices.Equal(got, tt.want) || (err == nil) != (tt.fault == "") || err != nil && !strings.HasPrefix(err.Error(), tt.fault) {
			t.Errorf("%s: got %d, %v, want %d, %q", tt.name, got, err, tt.want, tt.fault)
		}
	}
}

// TestSharedPortsStayWhenPeerPlansPrecedeThem: a change of the shared ports would change each flow's port.
func TestSharedPortsStayWhenPeerPlansPrecedeThem(t *testing.T) {
	cfg := Config{Ports: spread.Ports{First: 100, Last: 131}, Lanes: 4, PeerPlans: map[netip.AddrPort][]uint16{}}
	own := spread.Ports{First: 108, Last: 111}.All()
	all := slices.Concat(spread.Ports{First: 100, Last: 103}.All(), own)
	for _, c := range []struct {
		last sharedPorts
		want []uint16
	}{
		{own, own},
		{nil, all[:4]},                          // no shared ports known
		{[]uint16{110, 111, 112, 113}, all[:4]}, // not the tunnel's ports
	} {
		if got, err := (portOwners{}).chooseLanePorts(cfg, c.last.keepIn(all)); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%d: got %d, %v, want %d", c.last, got, err, c.want)
		}
	}
}

const table = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
 1185: 00000000:CA6C 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 27391 2 0000000000000000 0
 1186: 00000000000000000000000000000000:CA6D 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 27392 2 0 0
`

func TestReadSocketsParsesUDPTable(t *testing.T) {
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
