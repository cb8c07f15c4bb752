// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

const (
	renewedPeers = 8
	renewalLimit = 3
)

// hub is a host with sessions to many, whose initiations are observed and whose responses may be dropped.
type hub struct {
	*devicetest.Host
	peers []*devicetest.Host

	mu     sync.Mutex
	silent bool
	tried  map[netip.Addr]struct{} // the peers to which initiations were sent
}

func newHub(t *testing.T) *hub {
	h := &hub{tried: map[netip.Addr]struct{}{}}
	lan := devicetest.NewLAN(h.filter)
	h.Host = lan.Host(t, 1, devicetest.Options{})
	for i := range renewedPeers {
		p := lan.Host(t, byte(2+i), devicetest.Options{})
		devicetest.Connect(h.Host, p)
		talk(t, h.Host, p)
		h.peers = append(h.peers, p)
	}
	h.LimitRenewals(renewalLimit)
	time.Sleep(time.Second) // a peer accepts one initiation in 50 ms
	clear(h.tried)
	return h
}

// filter drops what peers send while they are silent.
func (h *hub) filter(from, to netip.AddrPort, datagram []byte) underlaytest.Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	kind, _ := wire.Classify(datagram)
	switch {
	case kind == wire.TypeInitiation:
		h.tried[to.Addr()] = struct{}{}
	case h.silent && kind == wire.TypeResponse:
		return underlaytest.Drop
	}
	return underlaytest.Deliver
}

func (h *hub) setSilent(silent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = silent
}

// triedPeers returns the number of peers to which the hub has sent initiations.
func (h *hub) triedPeers() int {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.tried)
}

// sessions returns the number of peers with which the hub has a session.
func (h *hub) sessions() (n int) {
	synctest.Wait()
	for _, p := range h.peers {
		if current, _ := h.PeerOf(p.Public()).Sessions(); current != nil {
			n++
		}
	}
	return n
}

func (h *hub) expectNoTurns(t *testing.T) {
	t.Helper()
	if running, waiting := h.Renewals(); running != 0 || waiting != 0 {
		t.Errorf("%d peers have their turn and %d wait, want none", running, waiting)
	}
}

func TestRenewalsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.setSilent(true)
		h.MachineCopied()
		if n := h.triedPeers(); n != renewalLimit {
			t.Errorf("handshakes with %d peers were started at once, want %d", n, renewalLimit)
		}
		time.Sleep(2 * time.Second)
		if n := h.triedPeers(); n != renewedPeers {
			t.Errorf("after 2 s without answers %d peers were tried, want %d", n, renewedPeers)
		}
		h.expectNoTurns(t)
		h.setSilent(false)
		h.MachineCopied()
		time.Sleep(10 * time.Millisecond)
		if n := h.sessions(); n != renewedPeers {
			t.Errorf("there are %d sessions, want %d: answers give turns to others", n, renewedPeers)
		}
		h.expectNoTurns(t)
	})
}

func TestWaitingPacketsNeedNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.setSilent(true)
		h.MachineCopied()
		for _, p := range h.peers {
			h.Send(flow.WithVnetHeader(h.To(p, 1, false).UDP(nil)))
		}
		if n := h.triedPeers(); n != renewedPeers {
			t.Errorf("handshakes with %d peers were started, want %d", n, renewedPeers)
		}
		time.Sleep(2 * time.Second)
		h.expectNoTurns(t)
	})
}

func TestDownEndsRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.setSilent(true)
		h.MachineCopied()
		if _, waiting := h.Renewals(); waiting == 0 {
			t.Fatal("no peer waits for its turn")
		}
		down(h.Host)
		h.expectNoTurns(t)
	})
}

func TestUpPacesRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		down(h.Host)
		h.setSilent(true)
		h.TUN.SetUp(true)
		h.Await("it is up", h.Up)
		h.Status()
		if n := h.triedPeers(); n != renewalLimit {
			t.Errorf("handshakes with %d peers were started at once, want %d", n, renewalLimit)
		}
		h.setSilent(false)
		time.Sleep(time.Second)
		if n := h.sessions(); n != renewedPeers {
			t.Errorf("there are %d sessions, want %d", n, renewedPeers)
		}
	})
}

// TestKeepalivesWaitForTurns: a persistent keepalive is due as soon as the interface is up.
func TestKeepalivesWaitForTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		every := uint16(25)
		for _, p := range h.peers {
			h.Apply(config.Device{Peers: []config.Peer{{PublicKey: p.Public(), Keepalive: &every}}})
		}
		down(h.Host)
		h.setSilent(true)
		h.TUN.SetUp(true)
		h.Await("it is up", h.Up)
		time.Sleep(10 * time.Millisecond)
		if n := h.triedPeers(); n != renewalLimit {
			t.Errorf("handshakes with %d peers were started at once, want %d", n, renewalLimit)
		}
		h.setSilent(false)
		time.Sleep(time.Second)
		if n := h.sessions(); n != renewedPeers {
			t.Errorf("there are %d sessions, want %d", n, renewedPeers)
		}
	})
}

// TestUpContinuesRenewals: the peers still send with the sessions that were erased.
func TestUpContinuesRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.setSilent(true)
		h.MachineCopied()
		h.triedPeers()
		down(h.Host)
		h.setSilent(false)
		time.Sleep(time.Second)
		h.TUN.SetUp(true)
		h.Await("it is up", h.Up)
		time.Sleep(time.Second)
		if n := h.sessions(); n != renewedPeers {
			t.Errorf("there are %d sessions, want %d", n, renewedPeers)
		}
	})
}

// TestHandoverContinuesRenewals has the device leave while most peers wait for their turn.
func TestHandoverContinuesRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.setSilent(true)
		h.MachineCopied()
		h.triedPeers()
		renew := 0
		for _, p := range handedOn(t, h.Host).Peers {
			if p.Hello != nil {
				renew++
			}
		}
		if renew != renewedPeers {
			t.Errorf("the next device renews %d sessions, want %d", renew, renewedPeers)
		}
	})
}
