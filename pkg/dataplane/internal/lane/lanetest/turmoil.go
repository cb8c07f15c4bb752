// SPDX-License-Identifier: Apache-2.0

package lanetest

import (
	"bytes"
	"errors"
	mathrand "math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// Turmoil is a rig with workers and two peers. A goroutine changes sessions, routes and ports while lanes run.
type Turmoil struct {
	*Rig
	clock  atomic.Int64
	Random *mathrand.Rand // of the test
	Peers  [2]*lane.Peer
	Routes [2]netip.Prefix
	Staged [2]stager

	mu       sync.Mutex // guards the fields below: messages leave by the lane and by the slow path
	Theirs   map[uint32]*session.Keypair
	used     map[counterOf]bool
	Order    flow.Checker
	Left     int
	failures *mathrand.Rand
}

// counterOf identifies a nonce, which must never be used twice.
type counterOf struct {
	receiver uint32
	counter  uint64
}

// stager is a SlowPath for concurrent use that counts staged packets.
type stager struct {
	lane.SlowPath
	Packets atomic.Int64
}

func (s *stager) Stage(_ []byte, packets int) *session.Keypair {
	s.Packets.Add(int64(packets))
	return nil
}

func (s *stager) Confirm(*session.Keypair) {}

func (s *stager) Rekey() {}

func (s *stager) Roam(underlay.Endpoint) {}

// NewTurmoil adds two peers to r.
func NewTurmoil(r *Rig, seed uint64) *Turmoil {
	m := &Turmoil{
		Rig:      r,
		Random:   mathrand.New(mathrand.NewPCG(seed, 1)),
		failures: mathrand.New(mathrand.NewPCG(seed, 2)),
		Theirs:   map[uint32]*session.Keypair{},
		used:     map[counterOf]bool{},
		Order:    flow.Checker{Lossy: true},
	}
	m.clock.Store(m.Now)
	m.Shared.Clock = func() int64 { return m.clock.Add(int64(10 * time.Millisecond)) }
	m.Conn.Fail, m.Conn.Silent = m.leaves, true
	for i := range m.Peers {
		m.Routes[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 32)
		m.Peers[i], _ = m.NewPeer(m.Routes[i].String())
		m.Peers[i].SlowPath = &m.Staged[i]
	}
	return m
}

// leaves is called for each run. It opens the messages as the peer does, and lets some sends fail.
func (t *Turmoil) leaves(run *underlay.Run) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fails := t.failures.IntN(8) == 0
	for msg := range run.Datagrams {
		at := counterOf{wire.ReceiverIndex(msg), wire.Counter(msg)}
		if t.used[at] {
			t.TB.Errorf("%+v was used twice", at)
		}
		t.used[at] = true
		if fails {
			continue
		}
		t.Left++
		t.Remote = t.Theirs[at.receiver]
		for _, p := range Unpadded(t.TB, [][]byte{t.Open(bytes.Clone(msg))}) {
			if err := t.Order.Take(flow.WithVnetHeader(p)); err != nil {
				t.TB.Error(err)
			}
		}
	}
	if fails {
		return errors.New("the network is unreachable")
	}
	return nil
}

// Sessions makes n of each peer's.
func (t *Turmoil) Sessions(n int) (ours [2][]*session.Keypair) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Now = t.clock.Load()
	for i, p := range t.Peers {
		for range n {
			k, theirs := t.NewSession(p, true)
			t.Theirs[k.Remote()] = theirs
			ours[i] = append(ours[i], k)
		}
	}
	return ours
}

// Disturb changes one thing of peer i, whose sessions are given.
func (t *Turmoil) Disturb(random *mathrand.Rand, i int, sessions []*session.Keypair) {
	p, l := t.Peers[i], t.Lane
	keys := sessions[random.IntN(len(sessions))]
	switch random.IntN(10) {
	case 0, 1, 2:
		p.Current.Store(keys)
	case 3:
		keys.Wipe()
	case 4:
		p.Current.Store(nil)
	case 5: // the port goes, and comes
		conn := l.Conn.Swap(nil)
		runtime.Gosched()
		l.Conn.Store(conn)
	case 6:
		t.Shared.Routes.Update(func(e *peer.Editor[*lane.Peer]) { e.RemoveOwner(p) })
	case 7:
		t.Shared.Routes.Update(func(e *peer.Editor[*lane.Peer]) { e.Add(t.Routes[i], p) })
	default:
		to := There
		to.Dst = netip.AddrPortFrom(to.Dst.Addr(), uint16(1+random.IntN(1000)))
		p.Endpoint.Store(&to)
	}
}

// Meanwhile does something now and then until the function that it returns is called.
func Meanwhile(something func()) (end func()) {
	var ended atomic.Bool
	var who sync.WaitGroup
	who.Go(func() {
		for !ended.Load() {
			something()
			runtime.Gosched()
		}
	})
	return func() {
		ended.Store(true)
		who.Wait()
	}
}

// GoesOn reports whether the test needs another round. With one processor few changes happen in time, so the test continues
// until there was one. A limit bounds the memory.
func GoesOn(round, rounds int, disturbed bool) bool {
	return round < rounds || round < 20*rounds && !disturbed
}

// RandomElements are trains and small packets of f, in any order.
func RandomElements(random *mathrand.Rand, f *flow.Flow) (elements [][]byte) {
	for range 1 + random.IntN(24) {
		if random.IntN(4) == 0 {
			elements = append(elements, f.Next(100))
		} else {
			elements = append(elements, f.Train(2+random.IntN(44), 1380))
		}
	}
	return elements
}
