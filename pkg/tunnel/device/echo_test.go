// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// probe asks a to probe b.
func probe(t *testing.T, a, b *devicetest.Host) config.PeerProbe {
	t.Helper()
	r, ok := a.ProbePeer(b.Public())
	if !ok {
		t.Fatal("got no such peer")
	}
	return r
}

func TestProbedPeerAnswersWithoutTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		if got := probe(t, a, b); !got.Up || got.Session {
			t.Errorf("at first: got %+v, want up without a session", got)
		}
		time.Sleep(5 * time.Second)
		before := probe(t, a, b)
		if !before.Session || !before.Echoes {
			t.Fatalf("after the handshake: got %+v, want a session and echoes", before)
		}
		time.Sleep(time.Second)
		if got := probe(t, a, b); got.Answered != before.Sent {
			t.Errorf("got %+v, want %d probes answered", got, before.Sent)
		}
	})
}

// TestPollsDoNotReplaceProbeUnderWay has a path with a round-trip time of 600 ms, and a caller that looks for the answer every 200 ms.
func TestPollsDoNotReplaceProbeUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		w := wiretap{lose: func(tapped) bool { return slow.Load() }}
		a, b := tappedPair(t, &w, devicetest.Options{})
		wantSoon(t, a, b)
		slow.Store(true)
		sent := probe(t, a, b).Sent
		for range 3 {
			time.Sleep(200 * time.Millisecond)
			probe(t, a, b)
		}
		answer := wire.Probe{Kind: wire.ProbeAnswer, ID: 1<<31 | uint32(sent), Size: wire.PaddingMultiple}
		a.PeerOf(b.Public()).Hello(wire.AppendProbe(nil, &answer), underlay.Endpoint{Dst: b.Outside(false)})
		time.Sleep(10 * time.Millisecond)
		if got := probe(t, a, b); got.Answered != 1 || got.RTT != 600*time.Millisecond {
			t.Errorf("got %+v, want one answer after 600 ms", got)
		}
		time.Sleep(2 * time.Second)
		if got := probe(t, a, b).Sent; got != sent+2 {
			t.Errorf("after a loss %d probes were sent, want %d", got, sent+2)
		}
	})
}

func TestProbeOfUnknownPeerIsRefused(t *testing.T) {
	a, _ := devicetest.Pair(t, devicetest.Options{})
	if got, ok := a.ProbePeer(a.Public()); ok {
		t.Errorf("got %+v, want no such peer", got)
	}
}

// estranged returns two hosts on a LAN. a has b as its peer; b has a as configure has changed it, and sends to it.
func estranged(t *testing.T, configure func(a, b *devicetest.Host, peer *config.Peer)) (a, b *devicetest.Host) {
	t.Helper()
	lan := devicetest.NewLAN(nil)
	a, b = lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
	a.Apply(config.Device{Peers: []config.Peer{b.AsPeer(false)}})
	peer := a.AsPeer(false)
	configure(a, b, &peer)
	b.Apply(config.Device{Peers: []config.Peer{peer}})
	b.Send(flow.WithVnetHeader(b.To(a, 1, false).UDP(nil)))
	return a, b
}

func otherKey(t *testing.T) noise.PrivateKey {
	t.Helper()
	lan := devicetest.NewLAN(nil)
	return lan.Host(t, 9, devicetest.Options{Stop: true}).Key
}

func TestRefusedHandshakesExplainSilentPeer(t *testing.T) {
	for name, c := range map[string]struct {
		configure func(*testing.T, *devicetest.Host, *devicetest.Host, *config.Peer)
		want      string
	}{
		"own key is another at the peer": {func(t *testing.T, _, _ *devicetest.Host, p *config.Peer) {
			p.PublicKey = otherKey(t).Public()
		}, "for another public key than this host's"},
		"peer's key is another": {func(t *testing.T, _, b *devicetest.Host, _ *config.Peer) {
			key := otherKey(t)
			b.Apply(config.Device{PrivateKey: &key})
		}, "which no peer has"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := estranged(t, func(a, b *devicetest.Host, p *config.Peer) { c.configure(t, a, b, p) })
				time.Sleep(time.Second)
				if got := probe(t, a, b).Handshake.RefusedText(); !strings.Contains(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
				time.Sleep(20 * time.Second)
				if got := a.PeerStatus(b).Handshake.String(); !strings.Contains(got, "initiations unanswered") || !strings.Contains(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		})
	}
}

// TestForgedRefusalChangesStatusOnly has a stranger's initiation arrive from a peer's endpoint.
func TestForgedRefusalChangesStatusOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent messages
		lan := devicetest.NewLAN(sent.filter)
		a, b, stranger := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{}), lan.Host(t, 3, devicetest.Options{})
		devicetest.Connect(a, b)
		wantSoon(t, a, b)
		stranger.Apply(config.Device{Peers: []config.Peer{a.AsPeer(false)}})
		stranger.Send(flow.WithVnetHeader(stranger.To(a, 1, false).UDP(nil)))
		time.Sleep(2 * time.Minute) // the log of refusals is limited, and so is this one
		before, at := a.PeerStatus(b), stranger.Outside(false).Addr()
		lan.Deliver(underlaytest.Routed{From: b.Outside(false), To: a.Outside(false), Payload: sent.latestFrom(at, wire.TypeInitiation)})
		time.Sleep(time.Second)
		after := a.PeerStatus(b)
		if got := probe(t, a, b).Handshake.RefusedKey; got != stranger.Public().Base64() {
			t.Errorf("got the refused key %q, want the stranger's", got)
		}
		if after.Endpoint != before.Endpoint || after.LastHandshake != before.LastHandshake || after.Spread.Active != before.Spread.Active {
			t.Errorf("got %+v, want %+v", after, before)
		}
		talk(t, a, b)
	})
}

func TestUnequalPresharedKeysExplainSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		peer := b.AsPeer(false)
		peer.PresharedKey = &noise.PresharedKey{1}
		a.Apply(config.Device{Peers: []config.Peer{peer}})
		probe(t, a, b)
		time.Sleep(time.Second)
		if got := probe(t, a, b).Handshake.RefusedText(); !strings.Contains(got, "preshared key") {
			t.Errorf("got %q, want the preshared key", got)
		}
		peer.PresharedKey = new(noise.PresharedKey)
		a.Apply(config.Device{Peers: []config.Peer{peer}})
		time.Sleep(10 * time.Second)
		if got := probe(t, a, b); !got.Session || got.Handshake != (config.PeerHandshake{}) {
			t.Errorf("after the keys are equal: got %+v, want a session", got)
		}
	})
}

func TestReflectionIsAdmittedFromAllowedIPsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		from, local, lookups := a.Status().Peers[0].AllowedIPs[0].Addr(), false, 0
		isLocal := func(netip.Addr) bool {
			lookups++
			return local
		}
		admitted := func() (n int) {
			for range 100 {
				if a.AdmitReflection(from, isLocal) {
					n++
				}
			}
			return n
		}
		time.Sleep(time.Second)
		if n := admitted(); n != 8 {
			t.Errorf("got %d of 100 requests admitted in a second, want 8", n)
		}
		if a.AdmitReflection(netip.MustParseAddr("192.0.2.77"), isLocal) {
			t.Error("a request was admitted from an address of no peer")
		}
		time.Sleep(time.Second)
		if n := admitted(); n != 8 {
			t.Errorf("got %d of 100 requests admitted in the next second, want 8", n)
		}
		time.Sleep(time.Second)
		if local = true; admitted() != 0 {
			t.Error("a request of this host was admitted")
		}
		if lookups != 24 {
			t.Errorf("got %d lookups, want 24: no more than are admitted from a peer", lookups)
		}
		if got := probe(t, a, b).Reflected; got != 16 {
			t.Errorf("got %d reflected, want 16", got)
		}
	})
}
