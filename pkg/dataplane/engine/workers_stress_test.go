// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	mathrand "math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// turmoil is a rig with workers and two peers. A goroutine changes sessions, routes and ports while lanes run.
type turmoil struct {
	*rig
	clock  atomic.Int64
	random *mathrand.Rand // of the test
	peers  [2]*Peer
	routes [2]netip.Prefix
	staged [2]stager

	mu       sync.Mutex // guards the fields below: messages leave by the lane and by the slow path
	theirs   map[uint32]*session.Keypair
	used     map[counterOf]bool
	order    flow.Checker
	left     int
	failures *mathrand.Rand
}

// counterOf identifies a nonce, which must never be used twice.
type counterOf struct {
	receiver uint32
	counter  uint64
}

// stager is a SlowPath for concurrent use that counts staged packets.
type stager struct {
	SlowPath
	packets atomic.Int64
}

func (s *stager) Stage(_ []byte, packets int) *session.Keypair {
	s.packets.Add(int64(packets))
	return nil
}
func (s *stager) Confirm(*session.Keypair) {}
func (s *stager) Rekey()                   {}
func (s *stager) Roam(underlay.Endpoint)   {}

func newTurmoil(t *testing.T, seed uint64) *turmoil {
	m := &turmoil{
		rig:      newRigWithWorkers(t, manyWorkers()),
		random:   mathrand.New(mathrand.NewPCG(seed, 1)),
		failures: mathrand.New(mathrand.NewPCG(seed, 2)),
		theirs:   map[uint32]*session.Keypair{},
		used:     map[counterOf]bool{},
		order:    flow.Checker{Lossy: true},
	}
	m.clock.Store(m.now)
	m.engine.cfg.Clock = func() int64 { return m.clock.Add(int64(10 * time.Millisecond)) }
	m.conn.fail, m.conn.silent = m.leaves, true
	m.engine.slow.lane.conn.Store(m.engine.lanes[0].conn.Load())
	for i := range m.peers {
		m.routes[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 32)
		m.peers[i], _ = m.newPeer(m.routes[i].String())
		m.peers[i].SlowPath = &m.staged[i]
	}
	return m
}

// leaves is called for each run. It opens the messages as the peer does, and lets some sends fail.
func (t *turmoil) leaves(run *underlay.Run) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fails := t.failures.IntN(8) == 0
	for msg := range run.Datagrams {
		at := counterOf{wire.ReceiverIndex(msg), wire.Counter(msg)}
		if t.used[at] {
			t.tb.Errorf("%+v was used twice", at)
		}
		t.used[at] = true
		if fails {
			continue
		}
		t.left++
		t.remote = t.theirs[at.receiver]
		for _, p := range unpadded(t.tb, [][]byte{t.open(bytes.Clone(msg))}) {
			if err := t.order.Take(flow.WithVnetHeader(p)); err != nil {
				t.tb.Error(err)
			}
		}
	}
	if fails {
		return errors.New("the network is unreachable")
	}
	return nil
}

// sessions makes n of each peer's.
func (t *turmoil) sessions(n int) (ours [2][]*session.Keypair) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = t.clock.Load()
	for i, p := range t.peers {
		for range n {
			k, theirs := t.newSession(p, true)
			t.theirs[k.Remote()] = theirs
			ours[i] = append(ours[i], k)
		}
	}
	return ours
}

// disturb changes one thing of peer i, whose sessions are given.
func (t *turmoil) disturb(random *mathrand.Rand, i int, sessions []*session.Keypair) {
	p, l := t.peers[i], t.engine.lanes[0]
	keys := sessions[random.IntN(len(sessions))]
	switch random.IntN(10) {
	case 0, 1, 2:
		p.Current.Store(keys)
	case 3:
		keys.Wipe()
	case 4:
		p.Current.Store(nil)
	case 5: // the port goes, and comes
		conn := l.conn.Swap(nil)
		runtime.Gosched()
		l.conn.Store(conn)
	case 6:
		t.engine.Routes.Update(func(e *peer.Editor[*Peer]) { e.RemoveOwner(p) })
	case 7:
		t.engine.Routes.Update(func(e *peer.Editor[*Peer]) { e.Add(t.routes[i], p) })
	default:
		to := there
		to.Dst = netip.AddrPortFrom(to.Dst.Addr(), uint16(1+random.IntN(1000)))
		p.Endpoint.Store(&to)
	}
}

// meanwhile does something now and then until the function that it returns is called.
func meanwhile(something func()) (end func()) {
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

// goesOn reports whether the test needs another round. With one processor few changes happen in time, so the test continues
// until there was one. A limit bounds the memory.
func goesOn(round, rounds int, disturbed bool) bool {
	return round < rounds || round < 20*rounds && !disturbed
}

// TestNoNonceIsReusedUnderStress wipes and replaces sessions, changes routes and the port, lets peers roam and sends fail, and
// sends on the slow path under the same keys, while workers seal. Each packet leaves in order or is counted as dropped.
func TestNoNonceIsReusedUnderStress(t *testing.T) {
	m := newTurmoil(t, 11)
	flows := [2]flow.Flow{
		{ID: 1, Ends: flow.Ends{Src: out4.Src, Dst: netip.AddrPortFrom(m.routes[0].Addr(), 1)}},
		{ID: 2, Ends: flow.Ends{Src: out4.Src, Dst: netip.AddrPortFrom(m.routes[1].Addr(), 1)}},
	}
	packets := 0
	disturbed := func() bool { return m.left > 0 && m.drops(drop.TXNoSession) > 0 && m.drops(drop.TXSendError) > 0 }
	for round := 0; goesOn(round, 40, disturbed()); round++ {
		sessions := m.sessions(3)
		var elements [][]byte
		for i := range flows {
			m.peers[i].Current.Store(sessions[i][0])
			m.engine.Routes.Update(func(e *peer.Editor[*Peer]) { e.Add(m.routes[i], m.peers[i]) })
			elements = append(elements, randomElements(m.random, &flows[i])...)
		}
		random := mathrand.New(mathrand.NewPCG(uint64(round), 3))
		end := meanwhile(func() { i := random.IntN(2); m.disturb(random, i, sessions[i]) })
		slow := flow.Flow{ID: uint32(100 + round), Ends: out4}
		slowly := meanwhile(func() {
			if slow.Sent() < 100 {
				m.engine.Transmit(m.peers[0], sessions[0][slow.Sent()%3], slow.Train(3, 1000))
			}
		})
		m.carry(elements...)
		end()
		slowly()
		packets += len(packetsOf(t, elements...)) + int(slow.Sent())
	}
	staged := int(m.staged[0].packets.Load() + m.staged[1].packets.Load())
	if got := m.left + staged + int(m.allDrops()); got != packets {
		t.Errorf("%d packets left, %d were staged, %d dropped: %d of %d", m.left, staged, m.allDrops(), got, packets)
	}
	if !disturbed() {
		t.Errorf("%d left, %+v: nothing was disturbed, or all", m.left, m.engine.Stats())
	}
	offered(t, m.engine.lanes[0].sealJobs.Stats())
}

// arrivals delivers long and short trains of both peers, and returns the number of packets.
func (t *turmoil) arrivals(trains, round int, ours [2][]*session.Keypair) (packets int) {
	var flows [2]flow.Flow
	for i := range flows {
		flows[i] = flow.Flow{ID: uint32(2*round + i), Ends: flow.Ends{Src: netip.AddrPortFrom(t.routes[i].Addr(), 1), Dst: out4.Src}}
	}
	for k := range trains {
		i, n := t.random.IntN(2), 1+t.random.IntN(3)
		if k < maxJobs || t.random.IntN(3) > 0 {
			n = 44
		}
		from := there
		from.Dst = netip.AddrPortFrom(from.Dst.Addr(), uint16(1+i))
		t.peers[i].Endpoint.Store(&from)
		t.remote = t.theirs[ours[i][0].Remote()]
		run, size := t.seal(packetsOf(t.tb, flows[i].Train(n, 1380))...)
		t.arriveFrom(k, from, run, size)
		packets += n
	}
	return packets
}

// TestReceiveKeepsOrderAndCountsUnderStress wipes and removes sessions and changes routes while workers open
// trains. Short datagrams may pass long ones.
func TestReceiveKeepsOrderAndCountsUnderStress(t *testing.T) {
	m := newTurmoil(t, 12)
	packets := 0
	for round := 0; goesOn(round, 60, m.allDrops() > 0); round++ {
		both := m.sessions(1)
		sessions := both[0]
		m.engine.Routes.Update(func(e *peer.Editor[*Peer]) { e.Add(m.routes[0], m.peers[0]) })
		trains := 2*maxJobs + m.random.IntN(2*maxJobs)
		packets += m.arrivals(trains, round, both)
		random, changes := mathrand.New(mathrand.NewPCG(uint64(round), 4)), 1+m.random.IntN(10+10*min(round, 60))
		end := meanwhile(func() {
			if changes--; changes == 0 {
				s, _ := m.engine.Sessions.Lookup(sessions[0].Local())
				m.engine.Sessions.Remove(sessions[0].Local())
				s.Keys.Store(nil)
				sessions[0].Wipe()
			} else if changes > 0 && random.IntN(4) == 0 {
				m.disturb(mathrand.New(mathrand.NewPCG(uint64(changes), 6)), 0, sessions)
			}
		})
		m.rx.batch(trains)
		end()
		for _, e := range m.delivered() {
			if err := m.order.Take(e); err != nil {
				t.Error(err)
			}
		}
	}
	delivered := int(m.engine.Stats().Lanes[0].RxPackets)
	if got := delivered + int(m.allDrops()); got != packets || delivered == 0 || delivered == packets {
		t.Errorf("%d packets delivered, %d dropped, of %d", delivered, m.allDrops(), packets)
	}
	if n := int(m.order.Total()); n != delivered {
		t.Errorf("%d packets of %d have reached the TUN", n, delivered)
	}
	offered(t, m.engine.lanes[0].openJobs.Stats())
}
