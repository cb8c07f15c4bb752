// SPDX-License-Identifier: Apache-2.0

package portplan

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func TestEmptySimulationIsRefused(t *testing.T) {
	newSimulation := func(change func(*Simulation)) *Simulation {
		s := &Simulation{
			Flows: 2, Rounds: 1, Seed: 1, RSS: spread.RSS{Key: spread.MicrosoftKey(), Indirection: spread.EqualIndirection(2)},
			From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddrPort("192.0.2.2:51820"), Candidates: spread.DefaultPorts,
		}
		change(s)
		return s
	}
	if _, err := newSimulation(func(*Simulation) {}).Run(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Simulation){
		"flows":  func(s *Simulation) { s.Flows = 0 },
		"rounds": func(s *Simulation) { s.Rounds = 0 },
		"lanes":  func(s *Simulation) { s.Lanes = -1 },
		"ports":  func(s *Simulation) { s.Candidates = spread.Ports{} },
		"table":  func(s *Simulation) { s.RSS.Indirection = nil },
		"key":    func(s *Simulation) { s.RSS.Key = nil },
		"all":    func(s *Simulation) { *s = Simulation{} },
	} {
		if r, err := newSimulation(change).Run(); err == nil || r != nil {
			t.Errorf("no %s: got %+v, want nil", name, r)
		}
	}
}
