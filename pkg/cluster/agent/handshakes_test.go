// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/binary"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// manyPeers returns an engine with n peers.
func manyPeers(n int) *fakeEngine {
	e := &fakeEngine{done: make(chan struct{})}
	for i := range n {
		st := config.PeerStatus{}
		binary.BigEndian.PutUint32(st.PublicKey[:], uint32(i+1))
		e.status.Peers = append(e.status.Peers, st)
	}
	return e
}

// peersWithKeepalive returns the peers that have a keepalive now, and all that have had one by the changes after the first n.
func (e *fakeEngine) peersWithKeepalive(n int) (now, ever map[noise.PublicKey]bool) {
	now, ever = map[noise.PublicKey]bool{}, map[noise.PublicKey]bool{}
	for _, p := range e.Status().Peers {
		if p.Keepalive != 0 {
			now[p.PublicKey] = true
		}
	}
	for _, c := range e.configuredSince(n) {
		for _, p := range c.Peers {
			if p.Keepalive != nil && *p.Keepalive != 0 {
				ever[p.PublicKey] = true
			}
		}
	}
	return now, ever
}

func TestHandshakesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers = 1000
		e := manyPeers(peers)
		n := triggerHandshakes(e, byLastHandshake(e.Status().Peers), 0, slog.New(slog.DiscardHandler))
		defer n.stop()
		synctest.Wait()
		if now, _ := e.peersWithKeepalive(0); len(now) != handshakeBurst {
			t.Errorf("%d at once", len(now))
		}
		begun := handshakeBurst
		for range 30 {
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()
			now, ever := e.peersWithKeepalive(0)
			if fresh := len(ever) - begun; fresh > 6*handshakeBatch || len(ever) < peers && fresh < 3*handshakeBatch {
				t.Errorf("%d in 200 ms", fresh)
			}
			if most := handshakeBurst + 30*handshakeBatch; len(now) > most {
				t.Errorf("%d have keepalives at once", len(now))
			}
			begun = len(ever)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if now, ever := e.peersWithKeepalive(0); len(ever) != peers || len(now) != 0 {
			t.Errorf("%d of %d in all, and %d for ever", len(ever), peers, len(now))
		}
	})
}

func TestRecentPeersHandshakeFirst(t *testing.T) {
	e := manyPeers(100)
	last, before := e.status.Peers[70].PublicKey, e.status.Peers[20].PublicKey
	e.status.Peers[70].LastHandshake, e.status.Peers[20].LastHandshake = time.Unix(9, 0), time.Unix(8, 0)
	turn := byLastHandshake(e.Status().Peers)
	if turn[0] != last || turn[1] != before || len(turn) != 100 {
		t.Error(turn[:2])
	}
	same := 0
	for i, key := range byLastHandshake(e.Status().Peers) {
		if key == turn[i] {
			same++
		}
	}
	if same > 50 {
		t.Errorf("%d of 100 have the same turn each time: all agents would begin with them", same)
	}
}

func TestHandshakeTriggerStopsWithEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := manyPeers(1000)
		n := triggerHandshakes(e, byLastHandshake(e.Status().Peers), 0, slog.New(slog.DiscardHandler))
		synctest.Wait()
		e.Close()
		<-n.done
		if _, ever := e.peersWithKeepalive(0); len(ever) != handshakeBurst {
			t.Error(len(ever))
		}
	})
}

func TestNewKeyRestartsHandshakeTrigger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, engine := newTestMeshReconciler(t)
		defer m.stop()
		own := meshNode(0, noise.PublicKey{})
		l := reconcileInput{nodes: []mesh.Node{own}, self: own}
		for i := range byte(200) {
			l.nodes = append(l.nodes, meshNode(i+1, noise.PublicKey{i + 1}))
		}
		m.mustReconcile(t, l)
		synctest.Wait()
		e := engine()
		before := len(e.configuredSince(0))
		if err := m.keys.prepare(2); err != nil {
			t.Fatal(err)
		}
		if err := m.switchKey(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if now, ever := e.peersWithKeepalive(before); len(ever) != 200 || len(now) != 0 {
			t.Errorf("%d, and %d for ever", len(ever), len(now))
		}
	})
}

func TestKeepalivesEndDespiteFailedChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := manyPeers(200)
		n := triggerHandshakes(halting{e, time.Now()}, byLastHandshake(e.Status().Peers), 0, slog.New(slog.DiscardHandler))
		defer n.stop()
		time.Sleep(time.Minute)
		if now, ever := e.peersWithKeepalive(0); len(ever) != 200 || len(now) != 0 {
			t.Errorf("%d, and %d for ever", len(ever), len(now))
		}
	})
}

// halting is an engine that rejects changes for a while.
type halting struct {
	*fakeEngine
	began time.Time
}

func (h halting) Configure(c config.Device) error {
	if after := time.Since(h.began); after > handshakeInterval && after < 2*keepaliveDuration {
		return errKeyRejected
	}
	return h.fakeEngine.Configure(c)
}
