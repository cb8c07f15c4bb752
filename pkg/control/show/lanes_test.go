// SPDX-License-Identifier: Apache-2.0

package show_test

import (
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/golden"
)

// spreading returns the sample with every form of spread.
func spreading() config.Status {
	st := sample()
	st.Spread, st.SpreadPorts, st.Lanes = config.SpreadAuto, spread.DefaultPorts, 4
	for i, s := range []config.PeerSpread{
		{Active: true, Ports: 16, Planned: true, Gathers: true},
		{Active: true, Ports: 16, Gathers: true, Blocked: []uint16{61000, 61003}},
		{Active: true, Ports: 1},
		{Gathers: true, Reason: "peer is behind a NAT: it says 10.0.0.2:51820, its packets come from 198.51.100.1:1024"},
	} {
		st.Peers[i].Spread = s
	}
	for i, m := range []config.PathMTU{
		{Bytes: 1480, State: config.PathMTUConfirmed},
		{Bytes: 1280, InnerBytes: 1200, State: config.PathMTUSearching},
		{Bytes: 1500, State: config.PathMTURoute},
		{Bytes: 1400, InnerBytes: 1328, State: config.PathMTUICMP},
	} {
		st.Peers[i].PathMTU = m
	}
	return st
}

func TestLanesMatchGoldenFiles(t *testing.T) {
	off := config.Status{Name: "off", Spread: config.SpreadOff, SpreadPorts: spread.DefaultPorts, Lanes: 1}
	foreign := sample()
	foreign.Name, foreign.Peers = "foreign", foreign.Peers[:2]
	golden.Check(t, "testdata/lanes.golden", pretty(t, show.Options{Now: now, ZoneName: zoneName, Lanes: true}, spreading(), off, foreign))
	golden.Check(t, "testdata/lanes-color.golden", pretty(t, show.Options{Now: now, ZoneName: zoneName, Lanes: true, Color: true}, spreading()))
}

func TestLanesAreShownOnlyWithOptionsLanes(t *testing.T) {
	opt := show.Options{Now: now, ZoneName: zoneName}
	plain := pretty(t, opt, sample())
	if got := pretty(t, opt, spreading()); got != plain {
		t.Errorf("output differs from wg:\n%s", got)
	}
	for _, sel := range show.Selectors() {
		if got := selected(t, spreading(), sel, true); got != selected(t, sample(), sel, true) {
			t.Errorf("%s: output differs from wg:\n%s", sel, got)
		}
	}
	opt.Lanes = true
	var kept []string
	for line := range strings.Lines(pretty(t, opt, spreading())) {
		if !strings.HasPrefix(line, "  spread: ") && !strings.HasPrefix(line, "  path mtu: ") && !strings.HasPrefix(line, "  lanes: ") {
			kept = append(kept, line)
		}
	}
	if got := strings.Join(kept, ""); got != plain {
		t.Errorf("without Options.Lanes the output differs from wg:\n%s", got)
	}
}
