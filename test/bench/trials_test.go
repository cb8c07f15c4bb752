// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/test/bench/measure"
)

// TestTunnelWorksAfterEachTrial runs each trial briefly. Their figures depend on the machine, but each flood must arrive and killing a
// daemon must cause an outage.
func TestTunnelWorksAfterEachTrial(t *testing.T) {
	needLabs(t)
	ropewalk := needBinary(t, "ropewalk", "build")
	measures := slices.Concat(measure.Trials(), measure.Measures()[:1])
	o := opener{
		queues: 2, stretch: 300 * time.Millisecond, traffic: []string{ropewalk, "traffic"}, measures: measures,
		argv: map[string][]string{ropewalkName: {ropewalk, "run"}},
	}
	b, err := o.open(t.Context(), ropewalkName)
	if err != nil {
		t.Fatal(err)
	}
	lab := b.(*tunnel).lab.Lab
	for _, c := range []struct {
		test    string
		figures []string // that are more than nothing
	}{
		{"flood500", []string{"alone_gbps", "elsewhere_flood_kpps", "closed_flood_kpps", "tunnel_flood_kpps"}},
		{"gap_kill", []string{valueFigure, "lost", "sent", "load_gbps"}},
		{"gap_upgrade", []string{"sent", "load_gbps"}},
		{"gap_switch", []string{"sent", "load_gbps"}},
		{measures[len(measures)-1].Name, []string{valueFigure}},
	} {
		t.Run(c.test, func(t *testing.T) {
			if c.test == "gap_switch" {
				netlabtest.NeedAFXDP(t)
			}
			figures, err := b.measure(t.Context(), c.test)
			if err != nil {
				t.Error(err)
			}
			for _, name := range c.figures {
				if !(figures[name] > 0) {
					t.Errorf("%s is %v of %v", name, figures[name], figures)
				}
			}
		})
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	isGone(t, lab)
}
