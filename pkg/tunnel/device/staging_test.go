// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"crypto/rand"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestStagedPacketsLeaveFirstAndInOrder(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{Depth: 4096})
	var check flow.Checker
	b.Watch(func(_ int, e []byte) {
		if err := check.Take(e); err != nil {
			t.Error(err)
		}
	})
	f, g := flow.Flow{Ends: a.To(b, 1, false), ID: 1}, flow.Flow{Ends: a.To(b, 2, true), ID: 2}
	want := uint64(0)
	for i := range 120 { // no more than may be staged, should the handshake take that long
		if i%6 == 0 {
			a.Send(g.Train(5, 1000))
			want += 5
		} else {
			a.Send(f.Next(100 + i))
			want++
		}
	}
	a.Await("all has arrived", func() bool { return check.Total() == want || t.Failed() })
	wantNoDrops(t, a, b)
}

// blockedPort is a port whose handshake messages to one endpoint wait until they are let go, as they would for a Diffie-Hellman operation.
type blockedPort struct {
	underlay.Port
	to      netip.AddrPort
	waiting chan struct{} // gets a value for each
	letGo   chan struct{}
}

func (b *blockedPort) SendTo(to *underlay.Endpoint, datagram []byte) error {
	if to.Dst == b.to {
		b.waiting <- struct{}{}
		<-b.letGo
	}
	return b.Port.SendTo(to, datagram)
}

// TestLanesDoNotWaitForHandshakeOfPeer stages a packet for a peer whose lock is held during a handshake.
func TestLanesDoNotWaitForHandshakeOfPeer(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	blocked := &blockedPort{waiting: make(chan struct{}, 1), letGo: make(chan struct{})}
	hub := lan.Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port {
		blocked.Port = p
		return blocked
	}})
	x, y := lan.Host(t, 2, devicetest.Options{}), lan.Host(t, 3, devicetest.Options{})
	blocked.to = x.Outside(false)
	devicetest.Connect(hub, y)
	devicetest.Connect(hub, x)
	talk(t, hub, y)
	sendText(hub, x, "begins a handshake")
	<-blocked.waiting
	sendText(hub, x, "is staged meanwhile")
	sendText(hub, y, "overtakes")
	if got := y.Next(); len(got) != 1 {
		t.Errorf("got %d packets, want 1", len(got))
	}
	close(blocked.letGo)
	wantNext(t, hub, x, "begins a handshake", "is staged meanwhile")
}

// addingPort is a port on which each staged packet that leaves adds another, as a lane does that is as fast as the worker which sends.
type addingPort struct {
	underlay.Port
	add atomic.Pointer[func()]
}

func (a *addingPort) SendRun(r *underlay.Run) error {
	if add := a.add.Load(); add != nil {
		(*add)()
	}
	return a.Port.SendRun(r)
}

// TestSessionBeginsHoweverManyPacketsAreStaged hangs if staged packets are sent for as long as there are new ones.
func TestSessionBeginsHoweverManyPacketsAreStaged(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	var port addingPort
	a := lan.Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port {
		port.Port = p
		return &port
	}})
	b := lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	check := flow.Checker{Lossy: true}
	b.Watch(func(_ int, e []byte) {
		if err := check.Take(e); err != nil {
			t.Error(err)
		}
	})
	f := flow.Flow{Ends: a.To(b, 1, false), ID: 1}
	sent := uint64(0)
	add := func() {
		for range 2 {
			if keys := a.PeerOf(b.Public()).Stage(f.Next(100), 1); keys == nil {
				sent++
			}
		}
	}
	first := f.Next(100)
	sent++
	port.add.Store(&add)
	a.Send(first)
	a.Await("there is a session", func() bool {
		current, _ := a.PeerOf(b.Public()).Sessions()
		return current != nil
	})
	port.add.Store(nil)
	a.Await("each packet has arrived or is counted", func() bool {
		return check.Total()+a.Drops(drop.TXStagedOverflow) == sent || t.Failed()
	})
}

// TestPacketPerRoundIsNotDropped stages one packet while each of the first hundred leaves, as a host that
// answers at once does.
func TestPacketPerRoundIsNotDropped(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	var port addingPort
	a := lan.Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port {
		port.Port = p
		return &port
	}})
	b := lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	check := flow.Checker{}
	b.Watch(func(_ int, e []byte) {
		if err := check.Take(e); err != nil {
			t.Error(err)
		}
	})
	f := flow.Flow{Ends: a.To(b, 1, false), ID: 1}
	left, staged := 100, uint64(1)
	add := func() { // with Peer.mu
		if left > 0 && a.PeerOf(b.Public()).Stage(f.Next(100), 1) == nil {
			left--
			staged++
		}
	}
	first := f.Next(100)
	port.add.Store(&add)
	a.Send(first)
	a.Await("there is a session", func() bool {
		current, _ := a.PeerOf(b.Public()).Sessions()
		return current != nil
	})
	port.add.Store(nil)
	a.Await("each packet has arrived or is counted", func() bool {
		return check.Total()+a.Drops(drop.TXStagedOverflow) == staged || t.Failed()
	})
	if n := a.Drops(drop.TXStagedOverflow); n != 0 {
		t.Errorf("%d packets were dropped as %v", n, drop.TXStagedOverflow)
	}
}

// steppedPort is a port on which the next messages of workers wait, one after the other, until they are let go.
type steppedPort struct {
	underlay.Port
	steps          atomic.Int64 // messages that will wait
	waiting, letGo chan struct{}
	runs           atomic.Int64 // that lanes have sent
}

func (s *steppedPort) SendRun(r *underlay.Run) error {
	if s.steps.Add(-1) >= 0 {
		s.waiting <- struct{}{}
		<-s.letGo
	}
	return s.Port.SendRun(r)
}

func (s *steppedPort) Lane(i int) underlay.Lane { return countedSends{s.Port.Lane(i), &s.runs} }

type countedSends struct {
	underlay.Lane
	runs *atomic.Int64
}

func (c countedSends) Send(runs []underlay.Run) int {
	defer c.runs.Add(int64(len(runs)))
	return c.Lane.Send(runs)
}

// TestLaterPacketsDoNotOvertakeStagedOnes has each lane read another packet while staged ones leave. The peer has one lane, so its host gets
// packets in the order in which they left.
func TestLaterPacketsDoNotOvertakeStagedOnes(t *testing.T) {
	const steps = 1 + 2 + 4 // of one, two and four staged packets
	lan := devicetest.NewLAN(nil)
	port := &steppedPort{waiting: make(chan struct{}), letGo: make(chan struct{})}
	a := lan.Host(t, 1, devicetest.Options{Lanes: 2, WrapPort: func(p underlay.Port) underlay.Port {
		port.Port = p
		return port
	}})
	b := lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	var check flow.Checker
	b.Watch(func(_ int, e []byte) {
		if err := check.Take(e); err != nil {
			t.Error(err)
		}
	})
	flows := [2]flow.Flow{{Ends: a.To(b, 0, false), ID: 0}, {Ends: a.To(b, 1, false), ID: 1}}
	port.steps.Store(steps)
	a.Send(flows[0].Next(100))
	for range steps {
		<-port.waiting
		for lane := range flows {
			before := a.StagedBytes()
			a.SendOn(lane, flows[lane].Next(100))
			a.Await("the lane has handled the packet", func() bool { return a.StagedBytes() != before || port.runs.Load() > 0 })
		}
		sent := port.runs.Load()
		if sent > 0 {
			port.steps.Store(0)
		}
		port.letGo <- struct{}{}
		if sent > 0 {
			t.Fatal("a lane has sent a packet while staged ones leave")
		}
	}
	a.Await("all has arrived", func() bool { return check.Total() == 1+2*steps || t.Failed() })
	wantNoDrops(t, a, b)
}

// idleHost is a host that is up, but whose workers only run in Step.
func idleHost(t testing.TB, lan devicetest.LAN, n byte) *devicetest.Host {
	t.Helper()
	h := lan.Host(t, n, devicetest.Options{Stop: true})
	h.Follow(tun.Event{Up: true, MTU: 1420})
	t.Cleanup(h.Shut)
	return h
}

func TestStagingKeepsNewestTrains(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	a, b := idleHost(t, lan, 1), lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	p := a.PeerOf(b.Public())
	const extra = 72
	for i := range device.MaxStaged + extra {
		p.Stage(flow.WithVnetHeader(a.To(b, uint16(i), false).UDP(nil)), 1)
	}
	if n := a.Drops(drop.TXStagedOverflow); n != extra {
		t.Errorf("%d trains overflowed, want %d", n, extra)
	}
	if n := a.PeerStatus(b).Packets.TxDrops; n != extra {
		t.Errorf("%d packets to the peer were dropped, want %d", n, extra)
	}
	b.Await("staged packets have left", func() bool {
		a.Step()
		return a.StagedBytes() == 0
	})
	for i := extra; i < device.MaxStaged+extra; {
		for _, packet := range b.Next() {
			if port := int(packet[20])<<8 | int(packet[21]); port != i {
				t.Fatalf("packet %d came, want %d", port, i)
			}
			i++
		}
	}
}

// unreachable configures n peers that do not answer.
func unreachable(t *testing.T, a *devicetest.Host, n int) (peers []*device.Peer) {
	t.Helper()
	nowhere := netip.MustParseAddrPort("192.0.2.250:1")
	var cfg config.Device
	for range n {
		cfg.Peers = append(cfg.Peers, config.Peer{PublicKey: newKey(t).Public(), Endpoint: &config.Endpoint{AddrPort: nowhere}})
	}
	a.Apply(cfg)
	for _, c := range cfg.Peers {
		peers = append(peers, a.PeerOf(c.PublicKey))
	}
	return peers
}

func TestStagingIsBoundedInBytes(t *testing.T) {
	a := idleHost(t, devicetest.NewLAN(nil), 1)
	element := devicetest.Ends(1, 2, 1, false).TCPTrain(0, 1000, make([]byte, 60000))
	peers := unreachable(t, a, device.MaxStagedTotal/device.MaxStagedBytes+10)
	for i, p := range peers {
		before := a.StagedBytes()
		for range 30 {
			p.Stage(element, 1)
		}
		if n := a.StagedBytes() - before; n > device.MaxStagedBytes || i == 0 && n < device.MaxStagedBytes-70000 {
			t.Fatalf("%d bytes staged for one peer", n)
		}
	}
	if n := a.StagedBytes(); n > device.MaxStagedTotal || n < device.MaxStagedTotal-70000 {
		t.Errorf("%d bytes staged, want about %d", n, device.MaxStagedTotal)
	}
	a.Shut()
	if n := a.StagedBytes(); n != 0 {
		t.Errorf("%d bytes are still staged", n)
	}
	if staged, late := a.Drops(drop.TXStagedExpired), a.Drops(drop.TXStagedOverflow); staged+late != uint64(30*len(peers)) {
		t.Errorf("%d and %d elements counted of %d", staged, late, 30*len(peers))
	}
	for _, p := range a.Status().Peers {
		if p.Packets.TxDrops != 30 {
			t.Errorf("%d packets counted of 30 to a peer", p.Packets.TxDrops)
		}
	}
}

// TestStagingBoundHoldsForAllPeers: one train to each of many peers must not add up.
func TestStagingBoundHoldsForAllPeers(t *testing.T) {
	a := idleHost(t, devicetest.NewLAN(nil), 1)
	element := devicetest.Ends(1, 2, 1, false).TCPTrain(0, 1000, make([]byte, 60000))
	peers := unreachable(t, a, device.MaxStagedTotal/60000+200)
	for _, p := range peers {
		p.Stage(element, 60)
	}
	if n := a.StagedBytes(); n > device.MaxStagedTotal {
		t.Errorf("%d bytes staged, want at most %d", n, device.MaxStagedTotal)
	}
	if n := a.Drops(drop.TXStagedOverflow); n == 0 || n%60 != 0 {
		t.Errorf("%d packets counted, want a multiple of 60", n)
	}
	status := map[noise.PublicKey]uint64{}
	for _, p := range a.Status().Peers {
		status[p.PublicKey] = p.Packets.TxDrops
	}
	oldest, newest := peers[0].Key(), peers[len(peers)-1].Key()
	if status[oldest] != 60 || status[newest] != 0 {
		t.Errorf("the oldest train lost %d packets, the newest %d, want 60 and 0", status[oldest], status[newest])
	}
}

func TestStagedBytesCountAllMemory(t *testing.T) {
	a := idleHost(t, devicetest.NewLAN(nil), 1)
	peers := unreachable(t, a, 300)
	element := flow.WithVnetHeader(devicetest.Ends(1, 2, 1, false).UDP(nil))
	before := heap()
	for _, p := range peers {
		for range device.MaxStaged {
			p.Stage(element, 1)
		}
	}
	grown, counted := heap()-before, a.StagedBytes()
	if slack := 1 << 20; grown > counted+slack {
		t.Errorf("%d bytes are counted, and the heap has grown by %d", counted, grown)
	}
	for _, p := range peers {
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: p.Key(), Remove: true}}})
	}
	if left := heap() - before; left > 1<<20 {
		t.Errorf("%d bytes of memory are left of dropped packets", left)
	}
	runtime.KeepAlive(peers)
}

// heap returns the bytes of live objects.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func newKey(t testing.TB) noise.PrivateKey {
	t.Helper()
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestRemovingPeerDropsStagedPackets(t *testing.T) {
	a := idleHost(t, devicetest.NewLAN(nil), 1)
	key := newKey(t).Public()
	a.Apply(config.Device{Peers: []config.Peer{{PublicKey: key}}})
	p := a.PeerOf(key)
	p.Stage(flow.WithVnetHeader(devicetest.Ends(1, 2, 1, false).UDP(nil)), 1)
	a.Apply(config.Device{Peers: []config.Peer{{PublicKey: key, Remove: true}}})
	if a.StagedBytes() != 0 || a.Drops(drop.TXStagedExpired) != 1 {
		t.Errorf("%d bytes are staged, %d packets counted", a.StagedBytes(), a.Drops(drop.TXStagedExpired))
	}
	p.Stage(flow.WithVnetHeader(devicetest.Ends(1, 2, 1, false).UDP(nil)), 1)
	if a.StagedBytes() != 0 || a.Drops(drop.TXNoSession) != 1 {
		t.Error("a removed peer stages packets")
	}
}

// TestSingleStagedPacketTriggersHandshake: within five seconds of a handshake none may be started, and nothing else
// is sent that would ask for one later.
func TestSingleStagedPacketTriggersHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		a.Key = newKey(t) // ends the session
		a.Apply(config.Device{PrivateKey: &a.Key})
		b.Apply(config.Device{ReplacePeers: true, Peers: []config.Peer{a.AsPeer(false)}})
		time.Sleep(time.Second)
		carries(t, a, b, false, 100)
	})
}
