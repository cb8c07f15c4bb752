// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/test/expect"
)

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
