// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
)

// setPostQuantum sets the policy of hosts.
func setPostQuantum(policy config.PostQuantum, hosts ...*devicetest.Host) {
	for _, h := range hosts {
		h.Apply(config.Device{Settings: config.Settings{PostQuantum: &policy}})
	}
}

// quantumPair returns two hosts of a LAN that are each other's peers.
func quantumPair(t *testing.T, lan devicetest.LAN, ofA, ofB config.PostQuantum) (a, b *devicetest.Host) {
	t.Helper()
	a, b = lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
	setPostQuantum(ofA, a)
	setPostQuantum(ofB, b)
	devicetest.Connect(a, b)
	return a, b
}

// quantum returns the report of one host about another.
func quantum(h, other *devicetest.Host) config.PeerPostQuantum {
	return h.Stats().(device.Stats).PostQuantum.Peers[other.Public().Base64()]
}

func wantActive(t *testing.T, a, b *devicetest.Host) {
	t.Helper()
	synctest.Wait()
	for _, ends := range [][2]*devicetest.Host{{a, b}, {b, a}} {
		if r := quantum(ends[0], ends[1]); !r.Active || r.Suite != "ML-KEM-768" || r.Reason != "" {
			t.Errorf("host %d reports %+v, want an active key", ends[0].N, r)
		}
	}
}

func wantInactive(t *testing.T, a, b *devicetest.Host, reason string) {
	t.Helper()
	synctest.Wait()
	if r := quantum(a, b); r.Active || r.Reason != reason {
		t.Errorf("host %d reports %+v, want the reason %q", a.N, r, reason)
	}
}

func exchanges(h *devicetest.Host) map[string]uint64 {
	return h.Stats().(device.Stats).PostQuantum.Exchanges
}

func TestTwoRopewalksBecomePostQuantum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		talk(t, a, b)
		sa, sb := a.Stats().(device.Stats), b.Stats().(device.Stats)
		if sa.Handshakes.Completed != 2 || sb.Handshakes.Confirmed != 2 {
			t.Errorf("got %+v and %+v, want two handshakes", sa.Handshakes, sb.Handshakes)
		}
		if exchanges(a)["completed"] != 2 || exchanges(b)["completed"] != 2 || sa.PostQuantum.Fallbacks+sb.PostQuantum.Fallbacks != 0 {
			t.Errorf("got exchanges %v and %v, want one in each session", exchanges(a), exchanges(b))
		}
		for _, reason := range []drop.Reason{drop.ExchangeInvalid, drop.ExchangeUnwanted, drop.ExchangeVersion, drop.RXNotPostQuantum} {
			if a.Drops(reason)+b.Drops(reason) != 0 {
				t.Errorf("%v packets were dropped", reason)
			}
		}
	})
}

// TestKeysAreRenewedByTheRekey keeps traffic for ten minutes.
func TestKeysAreRenewedByTheRekey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		for range 60 {
			talk(t, a, b)
			time.Sleep(10 * time.Second)
		}
		wantActive(t, a, b)
		if r := quantum(a, b); r.Age > 300 || r.Stale {
			t.Errorf("the key in use is %v s old", r.Age)
		}
		if n := exchanges(a)["completed"]; n < 5 || n > 7 {
			t.Errorf("got %d exchanges in ten minutes, want one for each session", n)
		}
		if s := a.Stats().(device.Stats).PostQuantum; s.Fallbacks != 0 {
			t.Errorf("got %d fallbacks, want 0", s.Fallbacks)
		}
	})
}

func TestPolicyOffExchangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, policies := range [][2]config.PostQuantum{
			{config.PostQuantumAuto, config.PostQuantumOff},
			{config.PostQuantumOff, config.PostQuantumAuto},
		} {
			a, b := quantumPair(t, devicetest.NewLAN(nil), policies[0], policies[1])
			talk(t, a, b)
			time.Sleep(time.Second)
			talk(t, a, b)
			reasons := map[config.PostQuantum]string{config.PostQuantumOff: "", config.PostQuantumAuto: "the peer does not offer post-quantum keys"}
			wantInactive(t, a, b, reasons[policies[0]])
			wantInactive(t, b, a, reasons[policies[1]])
			if n := a.Stats().(device.Stats).Handshakes.Initiated; n != 1 {
				t.Errorf("got %d handshakes, want 1", n)
			}
			a.Close()
			b.Close()
		}
	})
}

func TestAutoIsInactiveWithoutSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		off := config.SpreadOff
		a.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		talk(t, a, b)
		time.Sleep(4 * time.Second)
		wantInactive(t, a, b, "inactive: spread is off")
		auto := config.SpreadAuto
		a.Apply(config.Device{Settings: config.Settings{Spread: &auto}})
		for range 20 {
			talk(t, a, b)
			time.Sleep(10 * time.Second)
		}
		wantActive(t, a, b)
	})
}

// TestRequiredSendsNoDataBefore observes the wire: with required, the first data message with a packet in it belongs to the second session.
func TestRequiredSendsNoDataBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var initiations, early atomic.Int32
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			switch kind, _ := wire.Classify(datagram); {
			case kind == wire.TypeInitiation:
				initiations.Add(1)
			case kind == wire.TypeData && len(datagram) > 600 && initiations.Load() < 2: // longer than any part
				early.Add(1)
			}
			return underlaytest.Deliver
		})
		a, b := quantumPair(t, lan, config.PostQuantumRequired, config.PostQuantumRequired)
		carries(t, a, b, false, 1000)
		carries(t, b, a, false, 1000)
		wantActive(t, a, b)
		if early.Load() != 0 || initiations.Load() != 2 {
			t.Errorf("%d packets in a session without a key, %d initiations, want 0 and 2", early.Load(), initiations.Load())
		}
	})
}

// TestRequiredWorksWithoutSpread has hosts say in hellos that they take part, and nothing of spread.
func TestRequiredWorksWithoutSpread(t *testing.T) {
	for _, ofB := range []config.SpreadMode{config.SpreadOff, config.SpreadAuto} {
		synctest.Test(t, func(t *testing.T) {
			lan := devicetest.NewLAN(nil)
			a, b := lan.Host(t, 1, devicetest.Options{Plan: func(netip.AddrPort, *underlay.Endpoint, uint32, spread.Ports) []uint16 {
				t.Error("host 1 plans the ports of its peer")
				return nil
			}}), lan.Host(t, 2, devicetest.Options{})
			off, spray := config.SpreadOff, config.SprayAuto
			a.Apply(config.Device{Settings: config.Settings{Spread: &off, Spray: &spray}})
			b.Apply(config.Device{Settings: config.Settings{Spread: &ofB, Spray: &spray}})
			setPostQuantum(config.PostQuantumRequired, a, b)
			devicetest.Connect(a, b)
			talk(t, a, b)
			wantActive(t, a, b)
			if h := b.HelloOf(a.Public()); !h.PostQuantum || h.Gathers || h.Probes || h.First != 0 || h.Last != 0 || h.Lanes != 0 || h.FirstLanePort != 0 || len(h.Plan) != 0 {
				t.Errorf("got the hello %+v, want nothing of spread", h)
			}
			if n := a.OpenSources(); n != 0 {
				t.Errorf("%d source ports are open, want none", n)
			}
			if s := a.PeerStatus(b).Spread; s.Active || s.Gathers && ofB == config.SpreadOff {
				t.Errorf("host 1 spreads: %+v", s)
			}
		})
	}
}

func TestRequiredBlocksPeersWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumRequired, config.PostQuantumOff)
		a.Send(flow.WithVnetHeader(a.To(b, 1000, false).UDP(make([]byte, 100))))
		time.Sleep(6 * time.Second)
		b.Send(flow.WithVnetHeader(b.To(a, 1000, false).UDP(make([]byte, 100))))
		synctest.Wait()
		if r := quantum(a, b); !r.Blocked || r.Reason != "the peer does not offer post-quantum keys" {
			t.Errorf("got %+v, want blocked", r)
		}
		if n := a.Drops(drop.RXNotPostQuantum); n != 1 {
			t.Errorf("%d packets of the peer were dropped for lack of a key, want 1", n)
		}
		if p := a.PeerStatus(b); p.RxBytes == 0 {
			t.Error("the session receives nothing")
		}
		initiated := a.Stats().(device.Stats).Handshakes.Initiated
		if initiated != 1 {
			t.Errorf("got %d handshakes in 6 s, want 1", initiated)
		}
		time.Sleep(90 * time.Second)
		if n := a.Drops(drop.TXStagedExpired); n != 1 {
			t.Errorf("after 90 s: %d packets were dropped, want 1", n)
		}
		if n := b.PeerStatus(a); n.Packets.Rx > 20 {
			t.Errorf("the peer got %d messages", n.Packets.Rx)
		}
	})
}

// TestRequiredAtOneEndDropsFirstPackets: the other end with auto may send before it has a key.
func TestRequiredAtOneEndDropsFirstPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumRequired)
		a.Send(flow.WithVnetHeader(a.To(b, 1000, false).UDP(make([]byte, 100))))
		time.Sleep(time.Second)
		if n := b.Drops(drop.RXNotPostQuantum); n != 1 {
			t.Errorf("got %d drops, want the first packet", n)
		}
		wantActive(t, a, b)
		talk(t, a, b)
	})
}

func TestChangeToRequiredEndsBaseSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumOff, config.PostQuantumOff)
		talk(t, a, b)
		setPostQuantum(config.PostQuantumRequired, a, b)
		talk(t, a, b)
		wantActive(t, a, b)
		required := config.PostQuantumRequired
		setPostQuantum(config.PostQuantumOff, a, b)
		for _, h := range []*devicetest.Host{a, b} { // that of the peer prevails
			other := b
			if h == b {
				other = a
			}
			h.Apply(config.Device{Peers: []config.Peer{{PublicKey: other.Public(), PostQuantum: &required}}})
		}
		talk(t, a, b)
		wantActive(t, a, b)
	})
}

// lateLAN returns a LAN that loses data messages of 600 bytes or more, and a function that delivers the first of them.
func lateLAN() (lan devicetest.LAN, deliver func()) {
	var late atomic.Pointer[underlaytest.Routed]
	lan = devicetest.NewLAN(func(from, to netip.AddrPort, datagram []byte) underlaytest.Verdict {
		if kind, _ := wire.Classify(datagram); kind != wire.TypeData || len(datagram) < 600 {
			return underlaytest.Deliver
		}
		late.CompareAndSwap(nil, &underlaytest.Routed{From: from, To: to, Payload: bytes.Clone(datagram)})
		return underlaytest.Drop
	})
	return lan, func() { lan.Deliver(*late.Load()) }
}

// TestRequiredEndsAllBaseSessions: the policy changes while a packet of a session without a key is on its way. The session waits for that packet, or
// has been followed by one with a key.
func TestRequiredEndsAllBaseSessions(t *testing.T) {
	for name, before := range map[string]config.PostQuantum{"unconfirmed": config.PostQuantumOff, "previous": config.PostQuantumAuto} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan, deliver := lateLAN()
				a, b := quantumPair(t, lan, before, before)
				if before == config.PostQuantumAuto {
					a.Send(flow.WithVnetHeader(a.To(b, 1000, false).UDP(nil))) // the exchange begins after one has arrived
				}
				var received atomic.Int32
				b.Watch(func(int, []byte) { received.Add(1) })
				a.Send(flow.WithVnetHeader(a.To(b, 1000, false).UDP(make([]byte, 700))))
				time.Sleep(time.Second)
				if before == config.PostQuantumAuto {
					wantActive(t, a, b)
				}
				completed, early := b.Stats().(device.Stats).Handshakes.Completed, received.Load()
				setPostQuantum(config.PostQuantumRequired, b)
				deliver()
				synctest.Wait()
				if n := received.Load() - early; n != 0 {
					t.Errorf("got %d packets in a session without a key, want none", n)
				}
				time.Sleep(time.Second)
				renewed := b.Stats().(device.Stats).Handshakes.Completed - completed
				if want := before == config.PostQuantumOff; renewed != 0 != want {
					t.Errorf("got %d handshakes after the change", renewed)
				}
			})
		})
	}
}

// TestRestartedPeerGetsANewKey: the peer has lost its keys, so a handshake falls back.
func TestRestartedPeerGetsANewKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		b.Close()
		c := lan.Host(t, 2, devicetest.Options{})
		setPostQuantum(config.PostQuantumAuto, c)
		c.Apply(config.Device{PrivateKey: &b.Key})
		c.Key = b.Key
		c.Apply(config.Device{Peers: []config.Peer{{PublicKey: a.Public(), AllowedIPs: a.AsPeer(false).AllowedIPs}}})
		a.Send(flow.WithVnetHeader(a.To(c, 1000, false).UDP(make([]byte, 100))))
		time.Sleep(20 * time.Second) // until a notices
		a.Send(flow.WithVnetHeader(a.To(c, 1000, false).UDP(make([]byte, 100))))
		time.Sleep(time.Second)
		wantActive(t, a, c)
		if s := a.Stats().(device.Stats).PostQuantum; s.Fallbacks != 1 || s.Downgrades != 0 {
			t.Errorf("got %d fallbacks, %d downgrades, want 1, 0", s.Fallbacks, s.Downgrades)
		}
	})
}

// TestPeerReplacedByStockIsADowngrade: sessions had keys, and have none.
func TestPeerReplacedByStockIsADowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		setPostQuantum(config.PostQuantumOff, b)
		off := config.SpreadOff
		b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		b.MachineCopied()
		time.Sleep(time.Second)
		talk(t, a, b)
		if r := quantum(a, b); r.Active || r.Downgraded {
			t.Errorf("at first: got %+v, want no warning yet", r)
		}
		time.Sleep(31 * time.Second)
		talk(t, a, b)
		if r := quantum(a, b); !r.Downgraded || a.Stats().(device.Stats).PostQuantum.Downgrades != 1 {
			t.Errorf("after half a minute: got %+v, want downgraded", r)
		}
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), UpdateOnly: true, ForgetPostQuantum: true}}})
		if r := quantum(a, b); r.Downgraded || r.Policy != config.PostQuantumAuto {
			t.Errorf("after it was forgotten: got %+v, want no warning", r)
		}
	})
}

// TestCrashForgetsNoPostQuantumPeer: the next process takes sessions without a key for a downgrade, although it has never seen one with a key.
func TestCrashForgetsNoPostQuantumPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		recall := recallFrom(t, a.Device)
		a.Close()
		setPostQuantum(config.PostQuantumOff, b)
		again := lan.Host(t, 1, devicetest.Options{Recall: recall})
		setPostQuantum(config.PostQuantumAuto, again)
		again.Apply(config.Device{PrivateKey: &a.Key, Peers: []config.Peer{b.AsPeer(false)}})
		again.Key = a.Key
		for range 2 {
			talk(t, again, b)
			time.Sleep(31 * time.Second)
		}
		talk(t, again, b)
		if r := quantum(again, b); !r.Downgraded {
			t.Errorf("got %+v, want downgraded", r)
		}
	})
}

// TestSpreadThatIsOffForgetsNoPostQuantumPeer: the process was replaced while spread was off, and the
// peer has no keys any more once it is on.
func TestSpreadThatIsOffForgetsNoPostQuantumPeer(t *testing.T) {
	off := config.SpreadOff
	for name, replace := range map[string]func(t *testing.T, lan devicetest.LAN, a, b *devicetest.Host) *devicetest.Host{
		"crash": func(t *testing.T, lan devicetest.LAN, a, b *devicetest.Host) *devicetest.Host {
			recall := recallFrom(t, a.Device)
			a.Close()
			next := lan.Host(t, 1, devicetest.Options{Recall: recall})
			next.Apply(config.Device{
				PrivateKey: &a.Key, Peers: []config.Peer{b.AsPeer(false)},
				Settings: config.Settings{Spread: &off, PostQuantum: new(config.PostQuantumAuto)},
			})
			return next
		},
		"upgrade": func(t *testing.T, lan devicetest.LAN, a, _ *devicetest.Host) *devicetest.Host {
			a.Apply(config.Device{Settings: config.Settings{Spread: &off}})
			next := lan.Host(t, 1, devicetest.Options{Stop: true})
			expect.NoError(t, next.Resume(handedOn(t, a)))
			a.Retire()
			next.Start()
			return next
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := devicetest.NewLAN(nil)
				a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
				talk(t, a, b)
				time.Sleep(time.Second)
				wantActive(t, a, b)
				setPostQuantum(config.PostQuantumOff, b)
				next := replace(t, lan, a, b)
				next.Key = a.Key
				for range 3 { // once more, from a process that has only been told
					time.Sleep(time.Second)
					next = replace(t, lan, next, b)
					next.Key = a.Key
				}
				talk(t, next, b)
				wantInactive(t, next, b, "inactive: spread is off")
				next.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadAuto)}})
				for range 20 {
					talk(t, next, b)
					time.Sleep(10 * time.Second)
				}
				if r := quantum(next, b); !r.Downgraded {
					t.Errorf("got %+v, want downgraded", r)
				}
			})
		})
	}
}

// TestRecallIsForgottenWithThePolicyOff: the user does not want to know of a past with keys.
func TestRecallIsForgottenWithThePolicyOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		b := lan.Host(t, 2, devicetest.Options{})
		a := lan.Host(t, 1, devicetest.Options{Recall: func(_, _ noise.PublicKey) (device.SessionEndpoint, bool) {
			return device.SessionEndpoint{PostQuantum: time.Now()}, true
		}})
		for policy, want := range map[config.PostQuantum]int{config.PostQuantumAuto: 1, config.PostQuantumOff: 0} {
			a.Apply(config.Device{
				ReplacePeers: true, Peers: []config.Peer{b.AsPeer(false)},
				Settings: config.Settings{Spread: new(config.SpreadOff), PostQuantum: &policy},
			})
			if _, list, _ := a.SessionEndpoints(); len(list) != want {
				t.Errorf("%v: got %+v, want %d peers", policy, list, want)
			}
		}
	})
}

// TestSpreadTurnedOnAgainIsNoDowngrade: the next session has a key again.
func TestSpreadTurnedOnAgainIsNoDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		a.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}})
		for range 18 {
			time.Sleep(10 * time.Second)
			talk(t, a, b)
		}
		a.Apply(config.Device{Settings: config.Settings{Spread: new(config.SpreadAuto)}})
		for range 18 {
			talk(t, a, b)
			time.Sleep(10 * time.Second)
		}
		wantActive(t, a, b)
		if n := a.Stats().(device.Stats).PostQuantum.Downgrades; n != 0 {
			t.Errorf("got %d downgrades, want 0", n)
		}
	})
}

// TestLostKeysAreNamed: the peer was restarted, and the exchange takes its time.
func TestLostKeysAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var drops atomic.Bool
		a, b := quantumPair(t, devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if drops.Load() && len(datagram) >= 432 && len(datagram) <= 448 {
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		}), config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		drops.Store(true)
		b.MachineCopied()
		time.Sleep(6 * time.Second)
		talk(t, a, b)
		wantInactive(t, a, b, "lost by the peer, renewing")
		drops.Store(false)
		time.Sleep(40 * time.Second)
		wantActive(t, a, b)
	})
}

// TestSpreadTurnedOffIsNoDowngrade: sessions had keys, and have none since the policy is inactive. No timer may be due all the time.
func TestSpreadTurnedOffIsNoDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		off := config.SpreadOff
		a.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		for range 18 {
			time.Sleep(10 * time.Second)
			talk(t, a, b)
		}
		wantInactive(t, a, b, "inactive: spread is off")
		if r := quantum(a, b); r.Downgraded || a.Stats().(device.Stats).PostQuantum.Downgrades != 0 {
			t.Errorf("got %+v, want no downgrade", r)
		}
	})
}

// TestWakingTunnelIsPostQuantumAtOnce: the unused key of the last exchange outlives the sessions.
func TestWakingTunnelIsPostQuantumAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		if a.UsedKeys(b.Public()) == 0 {
			t.Error("no key has been used")
		}
		time.Sleep(10 * time.Minute)
		if n := a.UsedKeys(b.Public()) + b.UsedKeys(a.Public()); n != 0 {
			t.Errorf("%d keys that were used are left after 10 idle minutes", n)
		}
		time.Sleep(3 * time.Hour)
		initiated := a.Stats().(device.Stats).Handshakes.Initiated
		talk(t, a, b)
		wantActive(t, a, b)
		if n := a.Stats().(device.Stats).Handshakes.Initiated - initiated; n != 1 {
			t.Errorf("got %d handshakes, want 1", n)
		}
		if r := quantum(a, b); r.Stale {
			t.Errorf("got %+v, want no complaint of the key's age: there was no session in which to renew it", r)
		}
	})
}

// TestKeyThatIsNotRenewedIsStale: somebody drops all parts after the first exchange.
func TestKeyThatIsNotRenewedIsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if n := len(datagram); cut.Load() && (n == 448 || n == 432) {
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		})
		a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		cut.Store(true)
		for range 90 {
			talk(t, a, b)
			time.Sleep(10 * time.Second)
		}
		if r := quantum(a, b); !r.Active || !r.Stale {
			t.Errorf("got %+v, want a stale key", r)
		}
	})
}

// TestErasureOfAllKeys tries each event that erases the keys.
func TestErasureOfAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, event := range map[string]func(a *devicetest.Host){
			"copy":    func(a *devicetest.Host) { a.MachineCopied() },
			"resume":  func(a *devicetest.Host) { a.MachineResumed() },
			"off":     func(a *devicetest.Host) { setPostQuantum(config.PostQuantumOff, a) },
			"down":    func(a *devicetest.Host) { a.TUN.SetUp(false) },
			"new key": func(a *devicetest.Host) { k := noise.PrivateKey{1}; a.Apply(config.Device{PrivateKey: &k}) },
		} {
			a, b := quantumPair(t, devicetest.NewLAN(func(_, _ netip.AddrPort, d []byte) underlaytest.Verdict {
				return underlaytest.Deliver
			}), config.PostQuantumAuto, config.PostQuantumAuto)
			talk(t, a, b)
			time.Sleep(time.Second)
			synctest.Wait()
			before := a.Keys(b.Public())
			if len(before) == 0 {
				t.Fatal("there is no key")
			}
			event(a)
			synctest.Wait()
			for _, k := range a.Keys(b.Public()) {
				for _, old := range before {
					if k.Key == old.Key {
						t.Errorf("%s: a key is left", name)
					}
				}
			}
			a.Close()
			b.Close()
		}
	})
}

func TestUpgradeInPlaceKeepsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		c := lan.Host(t, 1, devicetest.Options{Stop: true})
		if err := c.Resume(handedOn(t, a)); err != nil {
			t.Fatal(err)
		}
		c.Key = a.Key
		a.Retire()
		c.Start()
		time.Sleep(time.Second)
		wantActive(t, c, b)
		talk(t, c, b)
		if n := c.Stats().(device.Stats).Handshakes.Completed; n != 1 {
			t.Errorf("got %d handshakes, want 1: the first has a key", n)
		}
		if s := c.Stats().(device.Stats).PostQuantum; s.Fallbacks != 0 || s.Policy != config.PostQuantumAuto {
			t.Errorf("got %+v, want no fallback and the policy", s)
		}
		if n := b.Stats().(device.Stats).PostQuantum.Fallbacks; n != 0 {
			t.Errorf("the peer fell back %d times", n)
		}
	})
}

// TestStateOfTheDefaultIsThatOfEarlierReleases: a release that does not know exchanges can take over the tunnel.
func TestStateOfTheDefaultIsThatOfEarlierReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.DefaultPostQuantum, config.DefaultPostQuantum)
		talk(t, a, b)
		s, err := a.Snapshot()
		expect.NoError(t, err)
		a.DiscardSnapshot()
		text, err := s.Encode()
		expect.NoError(t, err)
		for _, member := range []string{"post_quantum", "exchanges"} {
			if bytes.Contains(text, []byte(member)) {
				t.Errorf("the state has the member %s", member)
			}
		}
	})
}

// TestChangedKeysAreInTheUpdate: an exchange completes between the snapshot and the end.
func TestChangedKeysAreInTheUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		if _, err := a.Snapshot(); err != nil {
			t.Fatal(err)
		}
		talk(t, a, b)
		time.Sleep(time.Second)
		synctest.Wait()
		changes := a.Changes()
		if len(changes.Peers) != 1 || changes.Peers[0].Exchanges == nil || len(changes.Peers[0].Exchanges.Keys) != len(a.Keys(b.Public())) {
			t.Errorf("got %+v, want the keys", changes.Peers)
		}
		a.DiscardSnapshot()
	})
}

// TestPartsWaitForTheirTask: another task of the peer runs between the arrival of a part and its task.
func TestPartsWaitForTheirTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		if n := a.PartsAfterOtherTask(b.Public()); n != 1 {
			t.Errorf("%d parts wait after another task, want 1", n)
		}
	})
}

// TestExchangesWaitForHandshakes: the only worker has handshake messages to handle, which arrived later.
func TestExchangesWaitForHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		var h *devicetest.Host
		var p *device.Peer
		early := false
		clock := engine.NewClock()
		h = lan.Host(t, 1, devicetest.Options{Stop: true, Clock: func() int64 { // the task reads it
			early = early || p != nil && !p.ExchangeWaits() && h.QueuedHandshakes() > 0
			return clock()
		}})
		h.Follow(tun.Event{Up: true, MTU: 1420})
		defer h.Shut()
		s := newStranger(t, lan, 66)
		h.Apply(config.Device{Peers: []config.Peer{s.asPeer()}})
		h.Step()
		waiting := h.PeerOf(s.id.Public())
		waiting.AskForExchange()
		for i := range 32 {
			h.Handshake(s.initiation(h, at(i+1)), s.port.Endpoint(false))
		}
		p = waiting
		h.Work()
		if n := h.QueuedHandshakes(); n > 0 || p.ExchangeWaits() || early {
			t.Errorf("%d handshake messages wait, exchange waits: %v, came early: %v", n, p.ExchangeWaits(), early)
		}
	})
}

// TestTurnLastsUntilTheSessionWithTheKey: else the handshakes of all exchanges would be due at once, and repeated while they wait.
func TestTurnLastsUntilTheSessionWithTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var initiations atomic.Int32
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if kind, _ := wire.Classify(datagram); kind == wire.TypeInitiation && initiations.Add(1) > 1 {
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		})
		a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if n, sent := a.Exchanges(), initiations.Load(); n != 1 || sent != 2 {
			t.Errorf("%d turns and %d initiations, want 1 while the second initiation waits for its response", n, sent)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n, sent := a.Exchanges(), initiations.Load(); n != 0 || sent != 3 {
			t.Errorf("%d turns and %d initiations, want none of a peer that does not answer, and one more", n, sent)
		}
	})
}

func TestLostPartsAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int32
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if n := len(datagram); (n == 448 || n == 432 || n == 352) && lost.Add(1)%4 < 2 {
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		})
		a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		for range 30 {
			talk(t, a, b)
			time.Sleep(time.Second)
		}
		wantActive(t, a, b)
	})
}

// TestSilentExchangeStaysClassical: somebody drops all parts. Data is carried all the same, and the exchange ends.
func TestSilentExchangeStaysClassical(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parts atomic.Int32
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if n := len(datagram); n == 448 || n == 432 {
				parts.Add(1)
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		})
		a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(110 * time.Second)
		synctest.Wait()
		if n := parts.Load(); n != 3*9 {
			t.Errorf("got %d parts, want nine tries of three", n)
		}
		wantInactive(t, a, b, "the exchange failed, trying again with the next session")
		if exchanges(a)["timeout"] != 1 {
			t.Errorf("got %v, want a timeout", exchanges(a))
		}
		talk(t, a, b)
	})
}

// TestSessionOfThePeerEndsTheTurn: an exchange is offered, and all of the next session but its handshake and keepalives is lost. The peer has initiated
// it, so it would offer.
func TestSessionOfThePeerEndsTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			kind, _ := wire.Classify(datagram)
			if n := len(datagram); n == 448 || n == 432 || silent.Load() && kind == wire.TypeData && n > 32 {
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		})
		a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if n := a.Exchanges(); n != 1 {
			t.Fatalf("%d peers have a turn, want 1", n)
		}
		silent.Store(true)
		b.PeerOf(a.Public()).Initiate()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := a.Exchanges(); n != 0 {
			t.Errorf("%d peers have a turn in a session of the peer, want none", n)
		}
	})
}

// TestAnswererNamesTheKeyInUse: it has a newer key, of which it does not know whether the offerer has it.
func TestAnswererNamesTheKeyInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		if n := len(b.Keys(a.Public())); n != 2 {
			t.Errorf("the answerer has %d keys, want the one in use and the next", n)
		}
		b.MachineResumedKeepingKeys()
		time.Sleep(10 * time.Second)
		talk(t, a, b)
		wantActive(t, a, b)
		if s := b.Stats().(device.Stats); s.Handshakes.Completed != 1 || s.PostQuantum.Fallbacks != 0 {
			t.Errorf("got %d handshakes of the answerer, %d fallbacks, want 1, 0", s.Handshakes.Completed, s.PostQuantum.Fallbacks)
		}
	})
}

func TestPresharedKeyOfBothEndsCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		talk(t, a, b)
		time.Sleep(time.Second)
		wantActive(t, a, b)
		psk := noise.PresharedKey{1, 2, 3}
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), PresharedKey: &psk}}})
		before := a.Stats().(device.Stats).Handshakes.Completed
		a.MachineResumedKeepingKeys()
		time.Sleep(10 * time.Second)
		if n := a.Stats().(device.Stats).Handshakes.Completed; n != before {
			t.Error("a handshake completes although the preshared keys differ")
		}
		b.Apply(config.Device{Peers: []config.Peer{{PublicKey: a.Public(), PresharedKey: &psk}}})
		time.Sleep(10 * time.Second)
		talk(t, a, b)
		wantActive(t, a, b)
		if n := a.Stats().(device.Stats).PostQuantum.Fallbacks; n != 0 {
			t.Errorf("got %d fallbacks, want 0", n)
		}
	})
}

// TestUnfitResponsesEraseTheKeysAtTheEnd: the ends have different keys of one id. Only a whole attempt of responses that fit none erases them.
func TestUnfitResponsesEraseTheKeysAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := quantumPair(t, devicetest.NewLAN(nil), config.PostQuantumAuto, config.PostQuantumAuto)
		a.PutKey(b.Public(), noise.PresharedKey{1}, 7)
		b.PutKey(a.Public(), noise.PresharedKey{2}, 7)
		a.Send(flow.WithVnetHeader(a.To(b, 1000, false).UDP(make([]byte, 100))))
		time.Sleep(30 * time.Second)
		if len(a.Keys(b.Public())) != 1 {
			t.Error("the key is erased after some responses")
		}
		time.Sleep(65 * time.Second)
		if len(a.Keys(b.Public())) != 0 {
			t.Error("the key is not erased at the end of the attempt")
		}
		a.Send(flow.WithVnetHeader(a.To(b, 1000, false).UDP(make([]byte, 100))))
		time.Sleep(2 * time.Second)
		wantActive(t, a, b)
	})
}

// TestSilenceErasesNoKey: three responses fit no key, as forged ones do, and then nobody answers for a whole attempt.
func TestSilenceErasesNoKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		var responses atomic.Int32
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if kind, _ := wire.Classify(datagram); silent.Load() && kind == wire.TypeResponse && responses.Add(1) > 3 {
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		})
		a, b := quantumPair(t, lan, config.PostQuantumAuto, config.PostQuantumAuto)
		a.PutKey(b.Public(), noise.PresharedKey{1}, 7)
		b.PutKey(a.Public(), noise.PresharedKey{2}, 7)
		silent.Store(true)
		a.Send(flow.WithVnetHeader(a.To(b, 1000, false).UDP(make([]byte, 100))))
		time.Sleep(100 * time.Second)
		if len(a.Keys(b.Public())) != 1 || responses.Load() < 4 {
			t.Error("silence erases the key")
		}
		b.PutKey(a.Public(), noise.PresharedKey{1}, 7)
		silent.Store(false)
		talk(t, a, b)
		wantActive(t, a, b)
	})
}
