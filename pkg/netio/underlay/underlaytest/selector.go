// SPDX-License-Identifier: Apache-2.0

package underlaytest

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// selectorLanes is the number of lanes of B in the Selector's contract.
const selectorLanes = 4

// RunSelectorContract tests the contract of underlay.Selector. The factory's B has the given number of lanes, A has
// one.
func RunSelectorContract(t *testing.T, factory func(t *testing.T, lanes int) Subject) {
	for name, test := range map[string]func(*testing.T, *selected){
		"RangeIsRoundRobin":              rangeIsRoundRobin,
		"PlansSelectByPosition":          plansSelectByPosition,
		"PlansAreForTheirAddress":        plansAreForTheirAddress,
		"FirstPlanForAnAddressCounts":    firstPlanForAnAddressCounts,
		"NewSelectionHoldsAtOnce":        newSelectionHoldsAtOnce,
		"SelectionIsCopied":              selectionIsCopied,
		"UnselectedPortsKeepTheirLane":   unselectedPortsKeepTheirLane,
		"EmptySelectionRemovesFormerOne": emptySelectionRemovesFormerOne,
		"TrainsArriveWholeAtTheirLane":   trainsArriveWholeAtTheirLane,
		"SelectionChangesUnderTraffic":   selectionChangesUnderTraffic,
		"ClosedPortSelectsNothing":       closedPortSelectsNothing,
	} {
		t.Run(name, func(t *testing.T) { test(t, newSelected(t, factory(t, selectorLanes))) })
	}
	t.Run("OneLaneTakesEverything", func(t *testing.T) { oneLaneTakesEverything(t, factory(t, 1)) })
}

// arrival is one received datagram and its lane.
type arrival struct {
	lane   int
	from   netip.AddrPort
	number uint32
}

// selected is a Subject whose B is a Selector, with a receiving goroutine at each of its lanes.
type selected struct {
	Subject
	b    underlay.Selector
	came chan arrival
}

func newSelected(t *testing.T, s Subject) *selected {
	t.Helper()
	b, ok := s.B.(underlay.Selector)
	if !ok {
		t.Fatalf("%T is no Selector", s.B)
	}
	x := &selected{Subject: s, b: b, came: make(chan arrival, 1<<14)}
	for lane := range s.B.Lanes() {
		go x.listen(lane)
	}
	return x
}

func (s *selected) listen(lane int) {
	rx := newRX(8, 65535)
	for {
		n, err := s.B.Lane(lane).Recv(rx)
		if err != nil {
			return
		}
		for i := range n {
			for _, d := range Flatten(&rx[i]) {
				s.came <- arrival{lane, rx[i].From.Dst, binary.BigEndian.Uint32(d)}
			}
		}
	}
}

func (s *selected) next(t *testing.T) arrival {
	t.Helper()
	select {
	case a := <-s.came:
		return a
	case <-time.After(timeout):
		t.Fatal("a datagram did not arrive")
	}
	return arrival{}
}

// families returns the address families that A and B have in common; true is IPv6.
func (s *selected) families() []bool {
	if s.A.Features().IPv6 && s.B.Features().IPv6 {
		return []bool{false, true}
	}
	return []bool{false}
}

// from sends a datagram from each of A's sources, the listen port first, and returns their arrivals in that order.
func (s *selected) from(t *testing.T, ipv6 bool, sources int) []arrival {
	t.Helper()
	to := s.ToB(ipv6)
	list := make([]arrival, sources)
	for source := range list {
		send(t, s.A.Lane(0), fromSource(makeRun(&to, 1, 20, 20, 1, uint32(source)), source))
		list[source] = s.next(t)
		if got, want := list[source].from.Port(), s.A.Source(source); got != want {
			t.Fatalf("a datagram of port %d arrived, want one of %d", got, want)
		}
	}
	return list
}

// ports returns the ports of A's sources, without the listen port.
func (s *selected) ports(sources int) (list []uint16) {
	for i := 1; i <= sources; i++ {
		list = append(list, s.A.Source(i))
	}
	return list
}

func (s *selected) set(t *testing.T, selection underlay.Selection) {
	t.Helper()
	plans, err := s.b.SetSelection(&selection)
	if err != nil || plans != len(selection.Plans) {
		t.Fatalf("SetSelection has room for %d of %d plans, %v", plans, len(selection.Plans), err)
	}
	if got, want := s.B.Features().Select, selection.Selects(); got != want {
		t.Fatalf("Features.Select is %v, want %v", got, want)
	}
}

// expect compares the lanes at which datagrams arrived with the lanes of their ports. It ignores the listen port.
func (s *selected) expect(t *testing.T, got []arrival, want func(port uint16) int) {
	t.Helper()
	for _, a := range got[1:] {
		if lane := want(a.from.Port()); a.lane != lane {
			t.Errorf("%v arrived at lane %d, want %d", a.from, a.lane, lane)
		}
	}
}

// theRange is the range of openSources' ports.
func theRange() underlay.Selection {
	return underlay.Selection{First: firstSourcePort, Last: firstSourcePort + 999}
}

func byRange(port uint16) int { return int(port-firstSourcePort) % selectorLanes }

func byPlace(ports []uint16) func(port uint16) int {
	return func(port uint16) int { return slices.Index(ports, port) % selectorLanes }
}

func rangeIsRoundRobin(t *testing.T, s *selected) {
	openSources(t, s.A, 9)
	s.set(t, theRange())
	for _, ipv6 := range s.families() {
		s.expect(t, s.from(t, ipv6, 10), byRange)
	}
	// Both ends belong to the range, and nothing beyond does.
	ports := s.ports(9)
	narrow := underlay.Selection{First: slices.Min(ports), Last: slices.Max(ports)}
	for _, ipv6 := range s.families() {
		s.set(t, narrow)
		s.expect(t, s.from(t, ipv6, 10), func(port uint16) int { return int(port-narrow.First) % selectorLanes })
	}
}

func plansSelectByPosition(t *testing.T, s *selected) {
	openSources(t, s.A, 9)
	for _, ipv6 := range s.families() {
		ports := s.ports(9)
		slices.Reverse(ports)
		planned, selection := ports[:7], theRange()
		selection.Plans = []underlay.Plan{
			{From: netip.MustParseAddr("192.0.2.7"), Ports: s.ports(9)},
			{From: netip.MustParseAddr("2001:db8::7"), Ports: s.ports(9)},
			{From: s.from(t, ipv6, 1)[0].from.Addr(), Ports: planned},
		}
		s.set(t, selection)
		s.expect(t, s.from(t, ipv6, 10), func(port uint16) int {
			if slices.Contains(planned, port) {
				return byPlace(planned)(port)
			}
			return byRange(port)
		})
	}
}

// plansAreForTheirAddress has plans for addresses that differ from the sender's in one bit.
func plansAreForTheirAddress(t *testing.T, s *selected) {
	openSources(t, s.A, 5)
	for _, ipv6 := range s.families() {
		own, selection := s.from(t, ipv6, 1)[0].from.Addr(), theRange()
		for i := range own.BitLen() / 8 {
			for _, bit := range []byte{1, 0x80} {
				b := own.AsSlice()
				b[i] ^= bit
				other, _ := netip.AddrFromSlice(b)
				selection.Plans = append(selection.Plans, underlay.Plan{From: other, Ports: slices.Repeat([]uint16{1}, i%2+1)})
			}
		}
		for i := range selection.Plans {
			p := &selection.Plans[i]
			p.Ports = append(p.Ports, s.ports(5)...)
		}
		s.set(t, selection)
		s.expect(t, s.from(t, ipv6, 6), byRange)
	}
}

func firstPlanForAnAddressCounts(t *testing.T, s *selected) {
	openSources(t, s.A, 5)
	for _, ipv6 := range s.families() {
		own, ports := s.from(t, ipv6, 1)[0].from.Addr(), s.ports(5)
		s.set(t, underlay.Selection{Plans: []underlay.Plan{
			{From: own, Ports: append(ports, ports[0])}, {From: own, Ports: []uint16{1, ports[1], ports[0]}},
		}})
		s.expect(t, s.from(t, ipv6, 6), byPlace(ports))
	}
}

func newSelectionHoldsAtOnce(t *testing.T, s *selected) {
	openSources(t, s.A, 4)
	own, ports := s.from(t, false, 1)[0].from.Addr(), s.ports(4)
	for range 20 {
		ports = append(ports[1:], ports[0])
		s.set(t, underlay.Selection{Plans: []underlay.Plan{{From: own, Ports: ports}}})
		s.expect(t, s.from(t, false, 5), byPlace(ports))
		s.set(t, theRange())
		s.expect(t, s.from(t, false, 5), byRange)
	}
}

func selectionIsCopied(t *testing.T, s *selected) {
	openSources(t, s.A, 4)
	own, ports := s.from(t, false, 1)[0].from.Addr(), s.ports(4)
	want := byPlace(slices.Clone(ports))
	selection := underlay.Selection{Plans: []underlay.Plan{{From: own, Ports: ports}}}
	s.set(t, selection)
	slices.Reverse(ports)
	selection.Plans[0].From = netip.Addr{}
	s.expect(t, s.from(t, false, 5), want)
}

func unselectedPortsKeepTheirLane(t *testing.T, s *selected) {
	openSources(t, s.A, 4)
	for _, ipv6 := range s.families() {
		s.set(t, underlay.Selection{})
		before := s.from(t, ipv6, 5)
		for _, selection := range []underlay.Selection{
			theRange(),
			{First: 1, Last: 1},
			{Plans: []underlay.Plan{{From: before[0].from.Addr(), Ports: []uint16{1, 2, 3}}, {From: before[0].from.Addr()}, {}}},
			{First: 9, Last: 8},
		} {
			s.set(t, selection)
			after := s.from(t, ipv6, 5)
			for i, a := range after {
				_, moved := selection.Lane(a.from, selectorLanes)
				if !moved && a.lane != before[i].lane {
					t.Errorf("%v arrives at lane %d with %+v, and at %d without", a.from, a.lane, selection, before[i].lane)
				}
			}
		}
	}
}

// emptySelectionRemovesFormerOne: with nine sources of the range, the hash chooses at least one other lane.
func emptySelectionRemovesFormerOne(t *testing.T, s *selected) {
	openSources(t, s.A, 9)
	for _, ipv6 := range s.families() {
		s.set(t, underlay.Selection{})
		before := s.from(t, ipv6, 10)
		s.set(t, theRange())
		s.from(t, ipv6, 10)
		s.set(t, underlay.Selection{})
		for i, a := range s.from(t, ipv6, 10) {
			if a.lane != before[i].lane {
				t.Errorf("%v arrives at lane %d, and did at %d before there was a selection", a.from, a.lane, before[i].lane)
			}
		}
	}
}

func trainsArriveWholeAtTheirLane(t *testing.T, s *selected) {
	const segments = 45
	openSources(t, s.A, 4)
	s.set(t, theRange())
	for _, ipv6 := range s.families() {
		to := s.ToB(ipv6)
		for source := 1; source <= 4; source++ {
			send(t, s.A.Lane(0), fromSource(makeRun(&to, segments, 1000, 500, 1, 0), source))
			for number := range uint32(segments) {
				a := s.next(t)
				if a.lane != byRange(s.A.Source(source)) || a.number != number {
					t.Fatalf("datagram %d of port %d arrived at lane %d as number %d", a.number, a.from.Port(), a.lane, number)
				}
			}
		}
	}
}

// selectionChangesUnderTraffic: no datagram is lost with any selection.
func selectionChangesUnderTraffic(t *testing.T, s *selected) {
	const datagrams = 500
	openSources(t, s.A, 4)
	own := s.from(t, false, 1)[0].from.Addr()
	done := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				ended <- nil
				return
			default:
			}
			selection := []underlay.Selection{
				{}, theRange(), {Plans: []underlay.Plan{{From: own, Ports: s.ports(i % 5)}}},
			}[i%3]
			if _, err := s.b.SetSelection(&selection); err != nil {
				ended <- err
				return
			}
		}
	}()
	to := s.ToB(false)
	for number := range uint32(datagrams) {
		send(t, s.A.Lane(0), fromSource(makeRun(&to, 1, 20, 20, 1, number), int(number)%5))
		if a := s.next(t); a.number != number {
			t.Fatalf("datagram %d arrived, want %d", a.number, number)
		}
	}
	close(done)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func closedPortSelectsNothing(t *testing.T, s *selected) {
	if err := s.B.Close(); err != nil {
		t.Fatal(err)
	}
	for _, selection := range []underlay.Selection{{}, theRange()} {
		if plans, err := s.b.SetSelection(&selection); plans != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("SetSelection = %d, %v", plans, err)
		}
	}
}

func oneLaneTakesEverything(t *testing.T, subject Subject) {
	s := newSelected(t, subject)
	openSources(t, s.A, 2)
	own := s.from(t, false, 1)[0].from.Addr()
	selection := theRange()
	selection.Plans = []underlay.Plan{{From: own, Ports: []uint16{1, 2, s.A.Source(1)}}}
	s.set(t, selection)
	s.from(t, false, 3)
	s.set(t, underlay.Selection{})
	s.from(t, false, 3)
}
