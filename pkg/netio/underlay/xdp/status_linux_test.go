// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestStatusWhyNamesMainCause checks the precedence of the causes.
func TestStatusWhyNamesMainCause(t *testing.T) {
	down, targets := LaneStatus{Err: xsk.ErrDown}, [reasons]int{ViaXDP: 3, Unresolved: 1, NoNeighbour: 2}
	for want, s := range map[string]Status{
		"": {Lanes: []LaneStatus{{}}, Targets: [reasons]int{ViaXDP: 3, Unresolved: 1}},
		"no such device": {
			Err: errors.New("no such device"), Lanes: []LaneStatus{down}, Targets: targets,
		},
		"1 of 2 lanes have no AF_XDP socket: lane 1: the device is down: network is down": {
			Lanes: []LaneStatus{{}, down}, Targets: targets,
		},
		"2 destination addresses use the UDP socket: the next hop's link-layer address is unknown": {
			Lanes: []LaneStatus{{}}, Targets: targets,
		},
	} {
		if got := s.Why(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	seen := map[string]bool{}
	for r := range Reason(reasons) {
		if text := r.text(); text == "" || text == "unknown" || seen[text] {
			t.Errorf("reason %v: got text %q, want one of its own", r, text)
		} else {
			seen[text] = true
		}
	}
}

// TestCountersNeverDecreaseDuringSocketClose delays the lane in leaving its socket. If the counters decreased
// meanwhile, a reader would assume that they were reset.
func TestCountersNeverDecreaseDuringSocketClose(t *testing.T) {
	s := newTestNet(t)
	s.expect(500, true)
	l := s.port.lanes[0]
	c := l.laneSocket.Load()
	sent := s.port.Status().Lanes[0].Socket.Sent
	if sent == 0 || !c.rx.Enter() {
		t.Fatalf("got %d frames sent, want more than 0, and no goroutine in the receive call", sent)
	}
	leave := sync.OnceFunc(c.rx.Leave)
	t.Cleanup(leave) // before the port is closed, which waits for it
	s.link(0, netlink.LinkDel)
	expect.Eventually(t, "the lane to have no socket", func() bool { return l.laneSocket.Load() == nil })
	check := func() {
		t.Helper()
		if now := s.port.Status().Lanes[0].Socket.Sent; now != sent {
			t.Errorf("got %d frames sent, want %d as before", now, sent)
		}
	}
	check()
	leave()
	expect.Eventually(t, "the socket to be closed", func() bool {
		sup := s.port.supervisor
		sup.mu.Lock()
		defer sup.mu.Unlock()
		return sup.report.lanes[0].closing == nil
	})
	check()
}
