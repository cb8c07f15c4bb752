// SPDX-License-Identifier: Apache-2.0

package meshmode

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/guard"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// fakePrograms are Programs and their GuardHost.
type fakePrograms struct {
	classes  map[netip.Prefix]programs.GuardClass
	strict   bool
	attached int
	err      error // of SetPrefixes
	front    error // of Attach
	beside   programs.GuardCounts
}

func (p *fakePrograms) Open() (Programs, error) { return p, nil }
func (*fakePrograms) Remove() error             { return nil }
func (*fakePrograms) Close() error              { return nil }

func (p *fakePrograms) SetStrict(strict bool) error {
	p.strict = strict
	return nil
}

func (p *fakePrograms) SetPrefixes(classes map[netip.Prefix]programs.GuardClass) error {
	if p.err == nil {
		p.classes = maps.Clone(classes)
	}
	return p.err
}

func (p *fakePrograms) Attach(string) ([]guard.Attached, error) {
	p.attached++
	if p.front != nil {
		return nil, p.front
	}
	return []guard.Attached{{Name: "eth0", Index: 2, Behind: []string{"cil_to_netdev"}}}, nil
}

func (p *fakePrograms) Counts() (beside, tunneled programs.GuardCounts, err error) {
	return p.beside, tunneled, nil
}

// TestGuardTakesNoPacketForOneBesideTunnelTooEarly follows a prefix whose route comes, becomes strict and goes.
func TestGuardTakesNoPacketForOneBesideTunnelTooEarly(t *testing.T) {
	p := &fakePrograms{}
	g := &Guard{Host: p, Log: slog.New(slog.DiscardHandler)}
	prefix := netip.MustParsePrefix("10.244.2.0/24")
	for i, step := range []struct {
		class                      programs.GuardClass
		strict                     bool
		before, after              programs.GuardClass
		strictBefore, strictBeside bool
	}{
		{programs.GuardClassUnknown, false, programs.GuardClassUnknown, programs.GuardClassUnknown, false, false},
		{programs.GuardClassRemote, false, programs.GuardClassUnknown, programs.GuardClassRemote, false, false}, // a route comes
		{programs.GuardClassRemote, false, programs.GuardClassRemote, programs.GuardClassRemote, false, false},
		{programs.GuardClassUnknown, false, programs.GuardClassUnknown, programs.GuardClassUnknown, false, false}, // it goes
		{programs.GuardClassRemote, true, programs.GuardClassRemote, programs.GuardClassRemote, false, true},
		{programs.GuardClassUnknown, false, programs.GuardClassUnknown, programs.GuardClassUnknown, false, false},
	} {
		s := GuardState{map[netip.Prefix]programs.GuardClass{prefix: step.class}, step.strict}
		g.Before(s)
		if p.classes[prefix] != step.before || p.strict != step.strictBefore {
			t.Errorf("step %d, before the routes change: class %v, strict %v", i, p.classes[prefix], p.strict)
		}
		g.After(s)
		if p.classes[prefix] != step.after || p.strict != step.strictBeside {
			t.Errorf("step %d, after that: class %v, strict %v", i, p.classes[prefix], p.strict)
		}
	}
}

// TestFullGuardIsStrictNevertheless: it drops what it knows.
func TestFullGuardIsStrictNevertheless(t *testing.T) {
	p := &fakePrograms{err: errors.New("full")}
	g := &Guard{Host: p, Log: slog.New(slog.DiscardHandler)}
	s := GuardState{Strict: true}
	g.Before(s)
	g.After(s)
	if f, _ := g.Facts(); !p.strict || f.Fault == "" {
		t.Errorf("strict %v, fault %q", p.strict, f.Fault)
	}
}

// TestFaultStaysUntilHealed has a pass that succeeds where the fault is not.
func TestFaultStaysUntilHealed(t *testing.T) {
	p := &fakePrograms{}
	g := &Guard{Host: p, Log: slog.New(slog.DiscardHandler)}
	pass := func() {
		s := GuardState{Classes: map[netip.Prefix]programs.GuardClass{}}
		g.Before(s)
		g.After(s)
	}
	expect := func(when, want string) {
		t.Helper()
		if f, _ := g.Facts(); f.Fault != want {
			t.Errorf("%s: got the fault %q, want %q", when, f.Fault, want)
		}
	}
	pass()
	expect("at first", "")
	p.err = errors.New("full")
	pass()
	expect("after prefixes that do not fit", "full")
	g.Attach()
	expect("after an attachment", "full")
	p.err = nil
	g.Before(GuardState{})
	expect("before the routes change", "full")
	pass()
	expect("after all prefixes were set", "")
	p.front = errors.New("no hook")
	g.Attach()
	g.Before(GuardState{})
	expect("after a failed attachment", "no hook")
	p.front = nil
	g.Attach()
	expect("after another attachment", "")
}

func TestFactsNameDevicesAndProgramsInFront(t *testing.T) {
	p := &fakePrograms{}
	g := &Guard{Host: p, Log: slog.New(slog.DiscardHandler)}
	if f, counts := g.Facts(); f.Fault == "" || counts.Known {
		t.Errorf("before the first state: %+v, %+v", f, counts)
	}
	if g.Attach(); p.attached != 0 {
		t.Error("attached without prefixes")
	}
	s := GuardState{Classes: map[netip.Prefix]programs.GuardClass{}}
	g.Before(s)
	g.After(s)
	p.beside[programs.GuardClassRemote].Last = programs.GuardPacket{Time: time.Unix(1, 0), Device: 2, Address: netip.MustParseAddr("10.244.2.9")}
	f, counts := g.Facts()
	if f.Fault != "" || !counts.Known || len(f.Behind) != 1 || f.Behind[0] != "cil_to_netdev at eth0" || f.Beside.Device != "eth0" || f.Beside.Address != "10.244.2.9" {
		t.Errorf("got %+v", f)
	}
}
