// SPDX-License-Identifier: Apache-2.0

package spreadplan

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/spread"
)

func TestEmptySimulationIsRefused(t *testing.T) {
	scene := func(spoil func(*Scene)) *Scene {
		s := &Scene{
			Flows: 2, Rounds: 1, Seed: 1, RSS: spread.RSS{Key: spread.MicrosoftKey(), Indirection: spread.EqualIndirection(2)},
			From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddrPort("192.0.2.2:51820"), Candidates: spread.DefaultPorts,
		}
		spoil(s)
		return s
	}
	if _, err := scene(func(*Scene) {}).Run(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Scene){
		"flows":  func(s *Scene) { s.Flows = 0 },
		"rounds": func(s *Scene) { s.Rounds = 0 },
		"lanes":  func(s *Scene) { s.Lanes = -1 },
		"ports":  func(s *Scene) { s.Candidates = spread.Ports{} },
		"table":  func(s *Scene) { s.RSS.Indirection = nil },
		"key":    func(s *Scene) { s.RSS.Key = nil },
		"all":    func(s *Scene) { *s = Scene{} },
	} {
		if r, err := scene(spoil).Run(); err == nil || r != nil {
			t.Errorf("no %s: %+v", name, r)
		}
	}
}
