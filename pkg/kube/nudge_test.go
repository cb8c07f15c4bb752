// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/binary"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/mesh"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

// manyPeers is an engine with as many peers as there are.
func manyPeers(n int) *fakeEngine {
	e := &fakeEngine{done: make(chan struct{})}
	for i := range n {
		st := config.PeerStatus{}
		binary.BigEndian.PutUint32(st.PublicKey[:], uint32(i+1))
		e.status.Peers = append(e.status.Peers, st)
	}
	return e
}

// nudgedPeers are those that have keepalives, and all that have had them by the changes after the first n.
func (e *fakeEngine) nudgedPeers(n int) (now, ever map[noise.PublicKey]bool) {
	now, ever = map[noise.PublicKey]bool{}, map[noise.PublicKey]bool{}
	for _, p := range e.Status().Peers {
		if p.Keepalive != 0 {
			now[p.PublicKey] = true
		}
	}
	for _, c := range e.toldSince(n) {
		for _, p := range c.Peers {
			if p.Keepalive != nil && *p.Keepalive != 0 {
				ever[p.PublicKey] = true
			}
		}
	}
	return now, ever
}

func TestPeersAreMadeToShakeHandsAtAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers = 1000
		e := manyPeers(peers)
		n := nudge(e, inTurn(e.Status().Peers), slog.New(slog.DiscardHandler))
		defer n.stop()
		synctest.Wait()
		if now, _ := e.nudgedPeers(0); len(now) != nudgeBurst {
			t.Errorf("%d at once", len(now))
		}
		begun := nudgeBurst
		for range 30 {
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()
			now, ever := e.nudgedPeers(0)
			if fresh := len(ever) - begun; fresh > 6*nudgeBatch || len(ever) < peers && fresh < 3*nudgeBatch {
				t.Errorf("%d in 200 ms", fresh)
			}
			if most := nudgeBurst + 30*nudgeBatch; len(now) > most {
				t.Errorf("%d have keepalives at once", len(now))
			}
			begun = len(ever)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if now, ever := e.nudgedPeers(0); len(ever) != peers || len(now) != 0 {
			t.Errorf("%d of %d in all, and %d for ever", len(ever), peers, len(now))
		}
	})
}

func TestPeersThatWereTalkedToLastComeFirst(t *testing.T) {
	e := manyPeers(100)
	last, before := e.status.Peers[70].PublicKey, e.status.Peers[20].PublicKey
	e.status.Peers[70].LastHandshake, e.status.Peers[20].LastHandshake = time.Unix(9, 0), time.Unix(8, 0)
	turn := inTurn(e.Status().Peers)
	if turn[0] != last || turn[1] != before || len(turn) != 100 {
		t.Error(turn[:2])
	}
	same := 0
	for i, key := range inTurn(e.Status().Peers) {
		if key == turn[i] {
			same++
		}
	}
	if same > 50 {
		t.Errorf("%d of 100 have the same turn each time: all agents would begin with them", same)
	}
}

func TestNudgingEndsWithTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := manyPeers(1000)
		n := nudge(e, inTurn(e.Status().Peers), slog.New(slog.DiscardHandler))
		synctest.Wait()
		e.Close()
		<-n.done
		if _, ever := e.nudgedPeers(0); len(ever) != nudgeBurst {
			t.Error(len(ever))
		}
	})
}

func TestPeersOfANewKeyAreNudgedEvenWhileThoseOfANewEngineAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, engine := newTestMesher(t)
		defer m.leave()
		own := meshNode(0, noise.PublicKey{})
		l := look{nodes: []mesh.Node{own}, own: own}
		for i := range byte(200) {
			l.nodes = append(l.nodes, meshNode(i+1, noise.PublicKey{i + 1}))
		}
		m.look(t, l)
		synctest.Wait()
		e := engine()
		before := len(e.toldSince(0))
		if err := m.keys.prepare(2); err != nil {
			t.Fatal(err)
		}
		if err := m.switchKey(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if now, ever := e.nudgedPeers(before); len(ever) != 200 || len(now) != 0 {
			t.Errorf("%d, and %d for ever", len(ever), len(now))
		}
	})
}

func TestKeepalivesEndThoughAChangeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := manyPeers(200)
		n := nudge(halting{e, time.Now()}, inTurn(e.Status().Peers), slog.New(slog.DiscardHandler))
		defer n.stop()
		time.Sleep(time.Minute)
		if now, ever := e.nudgedPeers(0); len(ever) != 200 || len(now) != 0 {
			t.Errorf("%d, and %d for ever", len(ever), len(now))
		}
	})
}

// halting is an engine that takes no changes for a while.
type halting struct {
	*fakeEngine
	began time.Time
}

func (h halting) Configure(c config.Device) error {
	if after := time.Since(h.began); after > nudgeEvery && after < 2*nudgeFor {
		return errDeaf
	}
	return h.fakeEngine.Configure(c)
}
