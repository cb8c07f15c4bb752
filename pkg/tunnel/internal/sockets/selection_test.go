// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// counting counts changes.
type counting struct {
	*underlaytest.Fake
	mu    sync.Mutex
	calls int
}

func (c *counting) SetSelection(s *underlay.Selection) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	return c.Fake.SetSelection(s)
}

func newSelection(t *testing.T) (*Selection, *counting) {
	t.Helper()
	fake, other := underlaytest.Pipe(4)
	t.Cleanup(func() { _, _ = fake.Close(), other.Close() })
	port := &counting{Fake: fake}
	s := &Selection{Log: slog.New(slog.DiscardHandler)}
	s.Reset(port, spread.DefaultPorts)
	return s, port
}

func TestSelectionHoldsOnePlanPerPeerAndAddress(t *testing.T) {
	s, port := newSelection(t)
	a, b, c := new(int), new(int), new(int)
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, last}) }
	for i, step := range []struct {
		owner *int
		from  netip.Addr
		ports []uint16
		want  map[byte][]uint16
		calls int // since the beginning
	}{
		{a, at(1), []uint16{1, 2}, map[byte][]uint16{1: {1, 2}}, 2},
		{a, at(1), []uint16{1, 2}, map[byte][]uint16{1: {1, 2}}, 2}, // each session has its plan, mostly the same
		{b, at(2), []uint16{3}, map[byte][]uint16{1: {1, 2}, 2: {3}}, 3},
		{a, at(1), []uint16{2, 1}, map[byte][]uint16{1: {2, 1}, 2: {3}}, 4},
		{c, at(2), []uint16{4}, map[byte][]uint16{1: {2, 1}, 2: {3}}, 4}, // the first keeps the address
		{a, at(2), []uint16{5}, map[byte][]uint16{2: {3}}, 5},            // it is elsewhere, and there is another
		{a, at(3), []uint16{5}, map[byte][]uint16{2: {3}, 3: {5}}, 6},
		{b, netip.Addr{}, nil, map[byte][]uint16{3: {5}}, 7},
		{b, netip.Addr{}, nil, map[byte][]uint16{3: {5}}, 7},
		{c, at(2), []uint16{4}, map[byte][]uint16{3: {5}, 2: {4}}, 8},
	} {
		s.Plan(step.owner, step.from, step.ports)
		got := map[byte][]uint16{}
		for _, p := range port.Selection().Plans {
			got[p.From.As4()[3]] = p.Ports
		}
		if !reflect.DeepEqual(got, step.want) || port.calls != step.calls {
			t.Errorf("step %d: %v after %d changes, want %v after %d", i, got, port.calls, step.want, step.calls)
		}
	}
	s.Reset(nil, spread.Ports{})
	s.Plan(a, at(9), []uint16{9})
	s.Reset(port, spread.DefaultPorts)
	if got := port.Selection(); len(got.Plans) != 2 || got.First != spread.DefaultPorts.First {
		t.Errorf("the port that comes back has %+v", got)
	}
}

// TestGrowingPlanDisplacesNoOther checks that a growing plan moves behind all others, so that repeated changes of one
// plan move no flows of other peers.
func TestGrowingPlanDisplacesNoOther(t *testing.T) {
	s, port := newSelection(t)
	a, b, c := new(int), new(int), new(int)
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, last}) }
	s.Plan(a, at(1), []uint16{1})
	s.Plan(b, at(2), []uint16{2, 3})
	s.Plan(c, at(3), []uint16{4, 5})
	for i, step := range []struct {
		ports []uint16 // of a
		want  []byte   // addresses in the order of the plans
	}{
		{[]uint16{9}, []byte{1, 2, 3}},
		{[]uint16{9, 8}, []byte{2, 3, 1}},
		{[]uint16{7, 8}, []byte{2, 3, 1}},
		{[]uint16{7}, []byte{2, 3, 1}},
		{[]uint16{7, 6, 5}, []byte{2, 3, 1}},
	} {
		s.Plan(a, at(1), step.ports)
		var got []byte
		for _, p := range port.Selection().Plans {
			last := p.From.As4()[3]
			got = append(got, last)
			if last == 1 && !slices.Equal(p.Ports, step.ports) {
				t.Errorf("step %d: %v is in force, want %v", i, p.Ports, step.ports)
			}
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("step %d: the order is %v, want %v", i, got, step.want)
		}
	}
	s.Plan(b, netip.Addr{}, nil)
	if len(s.owners) != 2 || s.owners[0] != c || s.owners[1] != a {
		t.Error("owners and plans are in a different order")
	}
}

func TestSelectionLimitsPlans(t *testing.T) {
	s, port := newSelection(t)
	var first *int
	add := func(i int) *int {
		p := new(int)
		s.Plan(p, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), []uint16{uint16(i)})
		return p
	}
	for i := range 2 * maxPlans {
		if p := add(i); i == 0 {
			first = p
		}
	}
	if got := s.Report(); got.Plans != maxPlans || got.Wanted != maxPlans || port.calls != 1+maxPlans {
		t.Errorf("%+v after %d changes", got, port.calls)
	}
	s.Plan(first, netip.Addr{}, nil)
	add(1000)
	if plans := port.Selection().Plans; len(plans) != maxPlans || plans[maxPlans-1].Ports[0] != 1000 {
		t.Errorf("there is no room for one that comes when another has gone: %d plans", len(plans))
	}
}

func TestSelectionIsSafeForConcurrentUse(t *testing.T) {
	s, port := newSelection(t)
	var wg sync.WaitGroup
	for worker := range 4 {
		p := new(int)
		wg.Go(func() {
			for i := range 200 {
				s.Plan(p, netip.AddrFrom4([4]byte{10, 0, 0, byte(worker)}), []uint16{uint16(i)})
				_ = s.Report()
			}
			s.Plan(p, netip.Addr{}, nil)
		})
		wg.Go(func() {
			for range 20 {
				s.Reset(port, spread.DefaultPorts)
			}
		})
	}
	wg.Wait()
	if got := port.Selection(); len(got.Plans) != 0 {
		t.Errorf("left: %+v", got)
	}
}
