// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// guarded is a port and its guard. It records the guard's calls and counts the messages that it would reject.
type guarded struct {
	switched
	lot     *lot
	peers   underlay.Peers
	sharing sync.WaitGroup
	learns  func(config.Endpoint) // called by AddSource; nil for none
}

// lot is the sequence of one host's guards.
type lot struct {
	mu      sync.Mutex
	at      netip.Addr // the host
	current *guarded
	ready   bool
	indices map[uint32]int
	sources map[config.Endpoint]int
	refused int // data messages to an index that was not known
}

func (l *lot) wrap(p underlay.Port) underlay.Port {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready, l.indices, l.sources = false, map[uint32]int{}, map[config.Endpoint]int{}
	l.current = &guarded{switched: switched{Fake: p.(*underlaytest.Fake)}, lot: l}
	return l.current
}

// filter is an underlaytest.Filter that delivers all messages, whatever the guard decides.
func (l *lot) filter(_, to netip.AddrPort, datagram []byte) underlaytest.Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	kind, _ := wire.Classify(datagram)
	if to.Addr() == l.at && kind == wire.TypeData && l.ready && l.indices[wire.ReceiverIndex(datagram)] <= 0 {
		l.refused++
	}
	return underlaytest.Deliver
}

func (l *lot) do(g *guarded, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g == l.current { // calls to a closed port are ignored
		f()
	}
}

func (g *guarded) AddIndex(i uint32) { g.lot.do(g, func() { g.lot.indices[i]++ }) }

func (g *guarded) RemoveIndex(i uint32) {
	g.lot.do(g, func() {
		if g.lot.indices[i]--; g.lot.indices[i] == 0 {
			delete(g.lot.indices, i)
		}
	})
}

func (g *guarded) AddSource(a config.Endpoint) {
	g.lot.do(g, func() { g.lot.sources[a]++ })
	if g.learns != nil {
		g.learns(a)
	}
}

func (g *guarded) RemoveSource(a config.Endpoint) {
	g.lot.do(g, func() {
		if g.lot.sources[a]--; g.lot.sources[a] == 0 {
			delete(g.lot.sources, a)
		}
	})
}

// SetPeers does later what takes locks of the device, as a real port does.
func (g *guarded) SetPeers(peers underlay.Peers) {
	g.peers = peers
	g.sharing.Go(func() {
		peers.Guard(g)
		g.lot.do(g, func() { g.lot.ready = true })
	})
}

func (g *guarded) Close() error {
	g.sharing.Wait()
	return g.switched.Close()
}

// sourcesAre tells whether these are all, each as often as it stands there.
func (l *lot) sourcesAre(want ...config.Endpoint) func() bool {
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		count := map[config.Endpoint]int{}
		for _, a := range want {
			count[a]++
		}
		for a, n := range l.sources {
			if count[a] != n {
				return false
			}
		}
		return len(count) == len(l.sources)
	}
}

// numbers returns the number of indices as a guard counts them: calls of AddIndex less those of RemoveIndex.
func (l *lot) numbers() (indices, refused int, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.indices {
		indices += n
	}
	return indices, l.refused, l.ready
}

// TestGuardAdmitsAllSessionMessages lives through rekeys by both sides, another port, and the interface going down.
func TestGuardAdmitsAllSessionMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v4, _ := devicetest.Addresses(2)
		guard := lot{at: v4}
		lan := devicetest.NewLAN(guard.filter)
		a := lan.Host(t, 1, devicetest.Options{})
		b := lan.Host(t, 2, devicetest.Options{WrapPort: guard.wrap})
		devicetest.Connect(a, b)
		chat := func() {
			for range 40 {
				talk(t, a, b)
				time.Sleep(15 * time.Second)
			}
		}
		chat()
		port := uint16(4242)
		b.Apply(config.Device{ListenPort: &port})
		talk(t, b, a)
		chat()
		b.Follow(tun.Event{})
		b.Follow(tun.Event{Up: true, MTU: 1420})
		carries(t, b, a, false, 100)
		time.Sleep(time.Second) // until the new session is confirmed: messages of the old one have an unknown index
		chat()
		indices, refused, ready := guard.numbers()
		if refused != 0 || !ready || indices != b.Indices() || indices == 0 {
			t.Errorf("%d messages refused, ready %v, %d indices known of %d", refused, ready, indices, b.Indices())
		}
		b.Apply(config.Device{ReplacePeers: true})
		if indices, _, _ := guard.numbers(); indices != 0 || !guard.sourcesAre()() {
			t.Errorf("%d indices and %v left behind", indices, guard.sources)
		}
	})
}

func TestGuardFollowsPeerAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var guard lot
		lan := devicetest.NewLAN(nil)
		h := lan.Host(t, 1, devicetest.Options{WrapPort: guard.wrap})
		second, third := lan.Host(t, 2, devicetest.Options{}), lan.Host(t, 3, devicetest.Options{})
		at2, at3 := config.Endpoint{AddrPort: second.Outside(false)}, config.Endpoint{AddrPort: third.Outside(false)}
		unknown := second.AsPeer(false)
		unknown.Endpoint = nil
		h.Apply(config.Device{Peers: []config.Peer{unknown}})
		h.Await("an unknown place is none", guard.sourcesAre())
		second.Apply(config.Device{Peers: []config.Peer{h.AsPeer(false)}})
		talk(t, second, h)
		h.Await("the guard admits the address of a received message", guard.sourcesAre(at2))

		h.Apply(config.Device{Peers: []config.Peer{third.AsPeer(false)}})
		h.Await("the guard admits the configured address", guard.sourcesAre(at2, at3))
		h.Apply(config.Device{Peers: []config.Peer{{
			PublicKey: third.Public(), Endpoint: &at2,
		}}})
		h.Await("two may share one", guard.sourcesAre(at2, at2))
		third.Apply(config.Device{Peers: []config.Peer{h.AsPeer(false)}})
		talk(t, third, h)
		h.Await("the guard follows a moved peer", guard.sourcesAre(at2, at3))

		for _, scope := range []uint32{7, 8} {
			local := config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::1]:51820"), Scope: scope}
			h.Apply(config.Device{Peers: []config.Peer{{PublicKey: third.Public(), Endpoint: &local}}})
			h.Await("the guard follows a peer to another link", guard.sourcesAre(at2, local))
		}
		h.Apply(config.Device{Peers: []config.Peer{{PublicKey: third.Public(), Endpoint: &at3}}})
		port := uint16(4242)
		h.Apply(config.Device{ListenPort: &port})
		h.Await("another port knows the same", guard.sourcesAre(at2, at3))
		h.Apply(config.Device{Peers: []config.Peer{{PublicKey: second.Public(), Remove: true}}})
		h.Await("the guard drops a removed peer", guard.sourcesAre(at3))
	})
}

// TestNextGuardKnowsEachPeerOnce replaces the guard while peers roam and rekey.
func TestNextGuardKnowsEachPeerOnce(t *testing.T) {
	var guard lot
	lan := devicetest.NewLAN(nil)
	a := lan.Host(t, 1, devicetest.Options{Depth: 4096, WrapPort: guard.wrap})
	b := lan.Host(t, 2, devicetest.Options{Depth: 4096})
	devicetest.Connect(a, b)
	talk(t, a, b)
	here, elsewhere := config.Endpoint{AddrPort: b.Outside(false)}, config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.99:9")}
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Endpoint: &elsewhere}}})
				a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Endpoint: &here}}})
				a.PeerOf(b.Public()).Initiate()
			}
		}
	})
	for range 200 {
		old := guard.current
		next := guard.wrap(old.Fake).(*guarded)
		next.peers = old.peers
		next.peers.Guard(next)
	}
	close(stop)
	changes.Wait()
	a.Await("the last guard knows what the device knows", func() bool {
		indices, _, _ := guard.numbers()
		return indices == a.Indices() && guard.sourcesAre(here)()
	})
	if got := guard.current.peers.Endpoints(1); len(got) != 1 || got[0] != here {
		t.Errorf("got endpoints %v, want %v", got, here)
	}
	if got := guard.current.peers.Endpoints(0); len(got) != 0 {
		t.Errorf("got %v beyond the limit", got)
	}
	a.Apply(config.Device{ReplacePeers: true})
	if indices, _, _ := guard.numbers(); indices != 0 || !guard.sourcesAre()() {
		t.Errorf("%d indices and %v left behind", indices, guard.sources)
	}
}

// TestNextGuardCountsEachIndexOnce has a handshake with one of two peers begin, and one end, while the next guard learns of the other peer.
func TestNextGuardCountsEachIndexOnce(t *testing.T) {
	for _, c := range []struct {
		name           string
		before, during func(*device.Peer)
	}{
		{"begins", func(*device.Peer) {}, (*device.Peer).Initiate},
		{"ends", (*device.Peer).Initiate, (*device.Peer).LoseHandshake},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var guard lot
				lan := devicetest.NewLAN(nil)
				a := lan.Host(t, 1, devicetest.Options{WrapPort: guard.wrap})
				others := map[netip.AddrPort]*device.Peer{}
				for n := range byte(2) {
					other := lan.Host(t, 2+n, devicetest.Options{Stop: true})
					devicetest.Connect(a, other)
					others[other.Outside(false)] = a.PeerOf(other.Public())
				}
				for _, p := range others {
					c.before(p)
				}
				old := guard.current
				next := guard.wrap(old.Fake).(*guarded)
				next.learns = func(first config.Endpoint) {
					for at, p := range others {
						if at != first.AddrPort {
							c.during(p)
						}
					}
					next.learns = nil
				}
				old.peers.Guard(next)
				if indices, _, _ := guard.numbers(); indices != a.Indices() {
					t.Errorf("the guard counts %d indices, want %d", indices, a.Indices())
				}
			})
		})
	}
}

// TestGuardKnowsIndicesWhilePortChanges has handshakes cross with changes of the port.
func TestGuardKnowsIndicesWhilePortChanges(t *testing.T) {
	var guard lot
	lan := devicetest.NewLAN(nil)
	a := lan.Host(t, 1, devicetest.Options{Depth: 4096, WrapPort: guard.wrap})
	b := lan.Host(t, 2, devicetest.Options{Depth: 4096})
	devicetest.Connect(a, b)
	talk(t, a, b)
	stop := make(chan struct{})
	var initiators sync.WaitGroup
	initiators.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				a.PeerOf(b.Public()).Initiate()
			}
		}
	})
	for i := range uint16(200) {
		port := 10000 + i
		a.Apply(config.Device{ListenPort: &port})
	}
	close(stop)
	initiators.Wait()
	a.Await("the guard knows what the device knows", func() bool {
		indices, _, ready := guard.numbers()
		return ready && indices == a.Indices()
	})
}
