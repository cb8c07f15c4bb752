// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"crypto/rand"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
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
	if a.StagedBytes() != 0 || a.Drops(drop.TXDown) != 1 {
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
