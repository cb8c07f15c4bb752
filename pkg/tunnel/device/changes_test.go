// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// snapshotOf begins a handover.
func snapshotOf(t *testing.T, a *devicetest.Host) *device.State {
	t.Helper()
	s, err := a.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// addSilentPeers configures n more peers, which have an endpoint and never answer.
func addSilentPeers(a *devicetest.Host, n int) {
	var c config.Device
	for i := range n {
		c.Peers = append(c.Peers, config.Peer{
			PublicKey: noise.PublicKey{7, byte(i), byte(i >> 8)}, Endpoint: &config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.9:9")},
			AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}), 32)}},
		})
	}
	a.Apply(c)
}

// TestStopPassesOnNoIdleSession counts what is handed over while no packets are carried: peers that were heard from since the last round.
func TestStopPassesOnNoIdleSession(t *testing.T) {
	const n = 20 // peers with a session
	for _, active := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			lan := devicetest.NewLAN(nil)
			hub := lan.Host(t, 1, devicetest.Options{})
			var spokes []*devicetest.Host
			for i := range n {
				s := lan.Host(t, byte(i+2), devicetest.Options{})
				devicetest.Connect(hub, s)
				talk(t, s, hub)
				spokes = append(spokes, s)
			}
			addSilentPeers(hub, 500)
			time.Sleep(time.Minute)
			synctest.Wait() // a timer may have fired at the same time
			snapshot := snapshotOf(t, hub)
			for _, s := range spokes[:active] {
				s.PeerOf(hub.Public()).Initiate()
			}
			synctest.Wait()
			changed, round := hub.ChangedPeers(), hub.Changes()
			stopped := handedOn(t, hub)
			if sessions := withSession(snapshot); len(snapshot.Peers) != n+500 || sessions != n {
				t.Errorf("snapshot: got %d peers, %d with a session, want %d and %d", len(snapshot.Peers), sessions, n+500, n)
			}
			if len(round.Peers) != active || changed != active || len(stopped.Peers) != 0 {
				t.Errorf("%d peers active: got %d in the round, %d at the stop, want none there", active, len(round.Peers), len(stopped.Peers))
			}
			if indices := hub.Indices(); indices < n {
				t.Errorf("%d receiver indices are left: the stop has erased sessions", indices)
			}
			if hub.Retire(); hub.Indices() != 0 || hub.Timers() != 0 {
				t.Errorf("left after Retire: %d receiver indices, %d timers", hub.Indices(), hub.Timers())
			}
		})
	}
}

// withSession returns the number of peers whose session is to be renewed.
func withSession(s *device.State) (n int) {
	for i := range s.Peers {
		if s.Peers[i].Hello != nil {
			n++
		}
	}
	return n
}

// merged returns a state with the peers of later ones.
func merged(s *device.State, later ...*device.State) *device.State {
	for _, l := range later {
		all := slices.Clone(l.Peers)
		for _, p := range s.Peers {
			if !slices.ContainsFunc(l.Peers, func(q device.PeerState) bool { return q.PublicKey == p.PublicKey }) {
				all = append(all, p)
			}
		}
		last := *l
		last.Peers = all
		s = &last
	}
	return s
}

// TestHandoverHasEveryChangeSinceSnapshot compares the state after each kind of change with a complete one.
func TestHandoverHasEveryChangeSinceSnapshot(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *devicetest.Host, *devicetest.Host){
		"nothing":    func(*testing.T, *devicetest.Host, *devicetest.Host) {},
		"a session":  func(t *testing.T, a, b *devicetest.Host) { talk(t, a, b) },
		"a response": func(t *testing.T, a, b *devicetest.Host) { talk(t, b, a) },
		"no answer": func(_ *testing.T, a, _ *devicetest.Host) {
			ends := a.To(a, 7, false)
			ends.Dst = netip.AddrPortFrom(netip.MustParseAddr("10.99.0.1"), 7)
			a.Send(flow.WithVnetHeader(ends.UDP([]byte("x"))))
			time.Sleep(time.Second)
		},
		"no endpoint": func(_ *testing.T, a, _ *devicetest.Host) {
			ends := a.To(a, 7, false)
			ends.Dst = netip.AddrPortFrom(netip.MustParseAddr("10.98.0.1"), 7)
			a.Send(flow.WithVnetHeader(ends.UDP([]byte("x"))))
		},
		"roaming": func(t *testing.T, a, b *devicetest.Host) {
			port := uint16(4242)
			b.Apply(config.Device{ListenPort: &port})
			carries(t, b, a, false, 100)
		},
		"routes":      func(_ *testing.T, a, _ *devicetest.Host) { a.RoutesChanged() },
		"new index":   func(_ *testing.T, a, _ *devicetest.Host) { a.MoveScope(0, 7) },
		"down and up": func(_ *testing.T, a, _ *devicetest.Host) { a.TUN.SetUp(false); synctest.Wait(); a.TUN.SetUp(true) },
		"down":        func(_ *testing.T, a, _ *devicetest.Host) { a.TUN.SetUp(false) },
	} {
		for _, session := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, session %t", name, session), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := devicetest.Pair(t, devicetest.Options{})
					addSilentPeers(a, 3)
					a.Apply(config.Device{Peers: []config.Peer{{
						PublicKey: noise.PublicKey{8}, AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("10.98.0.1/32")}},
					}}})
					if session {
						talk(t, a, b)
					}
					time.Sleep(time.Minute)
					snapshot := snapshotOf(t, a)
					time.Sleep(time.Second)
					change(t, a, b)
					synctest.Wait()
					round := a.Changes()
					time.Sleep(time.Second)
					changes := handedOn(t, a)
					want := a.CompleteState()
					diff := cmp.Diff(want, merged(snapshot, round, changes), cmpopts.EquateEmpty(), cmpopts.SortSlices(func(x, y device.PeerState) bool { return x.PublicKey.Base64() < y.PublicKey.Base64() }),
						cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}))
					if diff != "" {
						t.Error(diff)
					}
				})
			})
		}
	}
}

// TestUpdatedDeviceRejectsReplayedInitiations has an initiation that arrives while the next process prepares.
func TestUpdatedDeviceRejectsReplayedInitiations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen messages
		lan := devicetest.NewLAN(seen.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		snapshot := snapshotOf(t, b)
		talk(t, a, b) // a initiates
		old, from := seen.latest(wire.TypeInitiation), underlay.Endpoint{Dst: a.Outside(false)}
		changes := handedOn(t, b)
		c := lan.Host(t, 2, devicetest.Options{Stop: true})
		if err := errors.Join(c.Resume(snapshot), c.Update(changes)); err != nil {
			t.Fatal(err)
		}
		followUp(t, c)
		if r := c.Handshake(old, from); r != drop.None {
			t.Fatal(r)
		}
		if got := c.StepHandshakes(); !slices.Contains(got, drop.HSReplay) { // a's response may have arrived, too
			t.Errorf("an initiation of before: %v", got)
		}
	})
}

// TestConfigureFailsDuringHandover: the change would be lost.
func TestConfigureFailsDuringHandover(t *testing.T) {
	a, _ := devicetest.Pair(t, devicetest.Options{})
	snapshotOf(t, a)
	if err := a.Configure(config.Device{}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("got %v, want %v", err, syscall.EBUSY)
	}
	a.DiscardSnapshot()
	if err := a.Configure(config.Device{}); err != nil {
		t.Error(err)
	}
}

// TestUpdateRefusesUnknownPeer and a device that was started.
func TestUpdateRefusesUnknownPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		s := snapshotOf(t, a)
		a.PeerOf(b.Public()).Initiate()
		changes := handedOn(t, a)
		if err := b.Update(changes); err == nil {
			t.Error("a device that runs was updated")
		}
		lan := devicetest.NewLAN(nil)
		c := lan.Host(t, 1, devicetest.Options{Stop: true})
		s.Peers = nil
		if err := c.Resume(s); err != nil {
			t.Fatal(err)
		}
		if err := c.Update(changes); err == nil {
			t.Error("an unknown peer was updated")
		}
	})
}

// TestPeerWithTrafficStartsBeforeItsTurn has a device whose many peers start one after the other.
func TestPeerWithTrafficStartsBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen messages
		lan := devicetest.NewLAN(seen.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b) // a initiates
		c := lan.Host(t, 3, devicetest.Options{Stop: true})
		c.Apply(config.Device{PrivateKey: &b.Key, Peers: []config.Peer{a.AsPeer(false)}})
		p, train := c.PeerOf(a.Public()), []byte("train")
		p.Stage(train, 1)
		if n := c.StagedBytes(); n != 0 {
			t.Errorf("%d bytes wait while the device is down", n)
		}
		c.WhileStarting(func() { p.Stage(train, 1) })
		if n := c.StagedBytes(); n == 0 {
			t.Error("a packet was dropped because it came before the turn of its peer")
		}
		c.Shut()
		from := underlay.Endpoint{Dst: a.Outside(false)}
		for want, handle := range map[drop.Reason]func(func()){drop.RXDown: func(f func()) { f() }, drop.None: c.WhileStarting} {
			if r := c.Handshake(seen.latest(wire.TypeInitiation), from); r != drop.None {
				t.Fatal(r)
			}
			handle(func() {
				if got := c.StepHandshakes(); len(got) != 1 || got[0] != want {
					t.Errorf("an initiation: got %v, want %v", got, want)
				}
			})
			c.Shut()
		}
	})
}

// TestRemovedPeerDoesNotStart has a lane that has found a peer before its removal, and passes a packet to it later.
func TestRemovedPeerDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		p := a.PeerOf(b.Public())
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Remove: true}}})
		a.WhileStarting(func() { p.Stage([]byte("train"), 1) })
		if n := a.StagedBytes(); n != 0 {
			t.Errorf("a peer that was removed has started: %d bytes wait for its session", n)
		}
	})
}

// TestSessionEndedDuringPreparationIsNotRenewed has a session whose keys are erased when the next process takes over.
func TestSessionEndedDuringPreparationIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		c := lan.Host(t, 1, devicetest.Options{Stop: true})
		if err := c.Resume(passedOn(t, snapshotOf(t, a))); err != nil {
			t.Fatal(err)
		}
		for a.Indices() > 0 { // the keys are erased after nine minutes, or later if the session was renewed meanwhile
			time.Sleep(time.Minute)
		}
		changes := passedOn(t, a.Changes())
		if err := errors.Join(c.Update(changes), c.Update(handedOn(t, a))); err != nil {
			t.Fatal(err)
		}
		c.Start()
		time.Sleep(time.Second)
		if n := c.Stats().(device.Stats).Handshakes.Initiated; n != 0 {
			t.Errorf("%d initiations to a peer whose session had ended", n)
		}
	})
}

// TestCountersOfRunningDeviceAreAdded counts what both devices have carried.
func TestCountersOfRunningDeviceAreAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		state := handedOn(t, a)
		c := lan.Host(t, 1, devicetest.Options{Stop: true})
		if err := c.Resume(state); err != nil {
			t.Fatal(err)
		}
		c.Key = a.Key
		c.Start()
		c.Await("a session", func() bool { return c.Stats().(device.Stats).Handshakes.Completed > 0 })
		carries(t, c, b, false, 100)
		synctest.Wait() // for answers and probes that are still being sent
		counters, own := countersOf(t, a), c.PeerStatus(b)
		before := c.Stats().(device.Stats)
		c.AddCounters(counters)
		was, is, after := counters.Peers[0].Traffic, c.PeerStatus(b), c.Stats().(device.Stats)
		if is.RxBytes != own.RxBytes+was.RxBytes || is.TxBytes != own.TxBytes+was.TxBytes || is.Packets.Tx != own.Packets.Tx+was.Packets.Tx || own.TxBytes == 0 || was.TxBytes == 0 {
			t.Errorf("got %+v, want the sum of %+v and %+v", is, own, was)
		}
		if after.Handshakes.Initiated != before.Handshakes.Initiated+counters.Handshakes.Initiated {
			t.Errorf("handshakes: got %+v, want the sum of %+v and %+v", after.Handshakes, before.Handshakes, counters.Handshakes)
		}
	})
}

// TestAddedCountersOfPeersAreFreed: a device with a million peers would keep 80 MB until the next upgrade.
func TestAddedCountersOfPeersAreFreed(t *testing.T) {
	c := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{Stop: true})
	peers := func() weak.Pointer[device.PeerCounters] {
		counters := &device.Counters{Stats: engine.Stats{Drops: map[string]uint64{"replay": 3}}, Peers: make([]device.PeerCounters, 1000)}
		c.AddCounters(counters)
		return weak.Make(&counters.Peers[0])
	}()
	runtime.GC()
	if peers.Value() != nil {
		t.Error("the device keeps the counters of all peers")
	}
	if n := c.AllDrops()["replay"]; n != 3 {
		t.Errorf("%d drops, want 3", n)
	}
}

// TestRetireLogsNothing: the device is another process's by then, and may have had thousands of peers.
func TestRetireLogsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		time.Sleep(time.Minute)
		if !a.PeerStatus(b).Spread.Active {
			t.Fatal("no spread")
		}
		handedOn(t, a)
		before := log.String()
		a.Retire()
		if after := log.String(); after != before {
			t.Errorf("logged %s", after[len(before):])
		}
	})
}
