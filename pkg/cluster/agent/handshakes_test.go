// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/binary"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// manyPeers returns the plan of a node with n others.
func manyPeers(n int) []mesh.Peer {
	all := make([]mesh.Peer, n)
	for i := range all {
		binary.BigEndian.PutUint32(all[i].Key[:], uint32(i+1))
	}
	return all
}

func TestHandshakesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers = 1000
		e := &fakeEngine{}
		b := startHandshakes(e, handshakeOrder(manyPeers(peers), nil), slog.New(slog.DiscardHandler))
		defer b.stop()
		synctest.Wait()
		begun := len(e.takeProbed())
		if begun != handshakeBurst {
			t.Errorf("%d at once", begun)
		}
		for range 30 {
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()
			fresh := len(e.takeProbed())
			if begun += fresh; fresh > 6*handshakeBatch || begun < peers && fresh < 3*handshakeBatch {
				t.Errorf("%d in 200 ms", fresh)
			}
		}
		if begun != peers {
			t.Errorf("%d of %d in all", begun, peers)
		}
		<-b.done
	})
}

func TestAbsentEngineDelaysHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &fakeEngine{unusable: engine.ErrAbsent}
		b := startHandshakes(e, handshakeOrder(manyPeers(60), nil), slog.New(slog.DiscardHandler))
		time.Sleep(time.Minute)
		e.setAbsent(false)
		time.Sleep(time.Minute)
		<-b.done
		if n := len(e.takeProbed()); n != 60 {
			t.Errorf("%d probed", n)
		}
		b = startHandshakes(&fakeEngine{unusable: engine.ErrAbsent}, []noise.PublicKey{{1}}, slog.New(slog.DiscardHandler))
		synctest.Wait()
		b.stop() // does not wait for an engine
	})
}

func TestRecentPeersHandshakeFirst(t *testing.T) {
	peers := append(manyPeers(100), mesh.Peer{External: "office", Key: noise.PublicKey{9, 9}})
	had := []config.PeerStatus{{PublicKey: peers[20].Key, LastHandshake: time.Unix(8, 0)}, {PublicKey: peers[70].Key, LastHandshake: time.Unix(9, 0)}}
	order := handshakeOrder(peers, had)
	if order[0] != peers[70].Key || order[1] != peers[20].Key || len(order) != 100 {
		t.Error(order[:2], len(order))
	}
	same := 0
	for i, key := range handshakeOrder(peers, had) {
		if key == order[i] {
			same++
		}
	}
	if same > 50 {
		t.Errorf("%d of 100 have the same turn each time: all agents would begin with them", same)
	}
}

func TestNewKeyRestartsHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, e := newTestMeshReconciler(t)
		defer m.stop()
		own := meshNode(0, noise.PublicKey{})
		l := reconcileInput{nodes: []mesh.Node{own}, self: own}
		for i := range byte(200) {
			l.nodes = append(l.nodes, meshNode(i+1, noise.PublicKey{i + 1}))
		}
		m.mustReconcile(t, l)
		synctest.Wait()
		e.takeProbed()
		if err := m.keys.prepare(2); err != nil {
			t.Fatal(err)
		}
		if err := m.switchKey(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		probed := e.takeProbed()
		slices.SortFunc(probed, func(a, b noise.PublicKey) int { return slices.Compare(a[:], b[:]) })
		if n := len(slices.Compact(probed)); n != 200 {
			t.Errorf("%d peers probed with the new key", n)
		}
	})
}
