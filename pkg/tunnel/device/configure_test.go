// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// sameStatus compares snapshots, but for the order of peers and their traffic.
func sameStatus(t *testing.T, got, want config.Status) {
	t.Helper()
	byKey := func(p, q config.PeerStatus) bool { return p.PublicKey.Hex() < q.PublicKey.Hex() }
	if diff := cmp.Diff(want, got, cmpopts.SortSlices(byKey), cmpopts.EquateComparable(netip.AddrPort{}, netip.Prefix{}),
		cmpopts.IgnoreFields(config.PeerStatus{}, "RxBytes", "TxBytes", "Packets"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("status differs (-want +got):\n%s", diff)
	}
}

func TestConfigureWithBusyPortChangesNothing(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	talk(t, a, b)
	bothSpread(t, a, b) // from then on the status changes only with traffic
	taken := takePort(t, lan, 1, 4242)
	before := a.Status()
	other, mark := newKey(t), uint32(7)
	err := a.Configure(config.Device{
		PrivateKey: &other, ListenPort: &taken, FwMark: &mark, ReplacePeers: true,
		Peers: []config.Peer{{PublicKey: newKey(t).Public()}},
	})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("error %v, want EADDRINUSE", err)
	}
	sameStatus(t, a.Status(), before)
	talk(t, a, b)
}

// takePort opens a port at the address of host n.
func takePort(t *testing.T, lan devicetest.LAN, n byte, port uint16) uint16 {
	t.Helper()
	v4, v6 := devicetest.Addresses(n)
	f, err := lan.Open(v4, v6, port, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return port
}

func TestTooManyPeersAreRefused(t *testing.T) {
	h := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{Stop: true})
	peers := make([]config.Peer, device.MaxPeers+1)
	for i := range peers {
		peers[i].PublicKey = noise.PublicKey{byte(i), byte(i >> 8), byte(i >> 16), 9}
	}
	if err := h.Configure(config.Device{Peers: peers}); !errors.Is(err, device.ErrTooManyPeers) {
		t.Fatalf("error %v, want ErrTooManyPeers", err)
	}
	if n := len(h.Status().Peers); n != 0 {
		t.Errorf("%d peers are configured", n)
	}
}

// TestBusyPortAtLinkUpIsFixedByNewPort does what the hint in the log message advises.
func TestBusyPortAtLinkUpIsFixedByNewPort(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	taken := takePort(t, lan, 1, 4242)
	errorLogged := make(chan struct{}, 1)
	h := lan.Host(t, 1, devicetest.Options{Log: slog.New(errorNoted{slog.DiscardHandler, errorLogged})})
	down(h)
	h.Apply(config.Device{ListenPort: &taken})
	h.TUN.SetUp(true)
	<-errorLogged
	if h.Up() {
		t.Fatal("up with a port that is taken")
	}
	if err := h.Configure(config.Device{ListenPort: &taken}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("error %v, want EADDRINUSE", err)
	}
	free := uint16(4243)
	h.Apply(config.Device{ListenPort: &free})
	if !h.Up() || h.Status().ListenPort != free {
		t.Errorf("up: %v, port %d", h.Up(), h.Status().ListenPort)
	}
}

// errorNoted is a slog.Handler that tells of errors.
type errorNoted struct {
	slog.Handler
	noted chan struct{}
}

func (errorNoted) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }

func (e errorNoted) Handle(context.Context, slog.Record) error {
	select {
	case e.noted <- struct{}{}:
	default:
	}
	return nil
}

func TestPeerChangesApplyIncrementally(t *testing.T) {
	h := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{})
	one, two, psk, every := newKey(t).Public(), newKey(t).Public(), newPSK(t), uint16(25)
	endpoint := &config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::1]:1"), Scope: 3}
	add := func(s string) config.AllowedIP { return config.AllowedIP{Prefix: netip.MustParsePrefix(s)} }
	remove := func(s string) config.AllowedIP {
		return config.AllowedIP{Prefix: netip.MustParsePrefix(s), Remove: true}
	}
	prefixes := func(s ...string) (p []netip.Prefix) {
		for _, s := range s {
			p = append(p, netip.MustParsePrefix(s))
		}
		return p
	}
	for _, c := range []struct {
		name   string
		change config.Device
		want   []config.PeerStatus
	}{
		{"update of nobody", config.Device{Peers: []config.Peer{{PublicKey: one, UpdateOnly: true}}}, nil},
		{"removal of nobody", config.Device{Peers: []config.Peer{{PublicKey: one, Remove: true}}}, nil},
		{"oneself", config.Device{Peers: []config.Peer{{PublicKey: h.Public()}}}, nil},
		{"two peers", config.Device{Peers: []config.Peer{
			{PublicKey: one, AllowedIPs: []config.AllowedIP{add("10.1.0.0/16"), add("fd01::/64")}},
			{PublicKey: two, PresharedKey: psk, Endpoint: endpoint, Keepalive: &every},
		}}, []config.PeerStatus{
			{PublicKey: one, AllowedIPs: prefixes("10.1.0.0/16", "fd01::/64")},
			{PublicKey: two, PresharedKey: *psk, Endpoint: *endpoint, Keepalive: 25},
		}},
		{"a prefix moves", config.Device{Peers: []config.Peer{
			{PublicKey: two, UpdateOnly: true, AllowedIPs: []config.AllowedIP{add("10.1.0.0/16"), add("10.2.0.0/16")}},
		}}, []config.PeerStatus{
			{PublicKey: one, AllowedIPs: prefixes("fd01::/64")},
			{PublicKey: two, PresharedKey: *psk, Endpoint: *endpoint, Keepalive: 25, AllowedIPs: prefixes("10.1.0.0/16", "10.2.0.0/16")},
		}},
		{"less", config.Device{Peers: []config.Peer{
			{PublicKey: one, ReplaceAllowedIPs: true},
			{PublicKey: two, PresharedKey: &noise.PresharedKey{}, Keepalive: new(uint16), AllowedIPs: []config.AllowedIP{remove("10.1.0.0/16"), remove("fd01::/64")}},
		}}, []config.PeerStatus{
			{PublicKey: one}, {PublicKey: two, Endpoint: *endpoint, AllowedIPs: prefixes("10.2.0.0/16")},
		}},
		{"one goes", config.Device{Peers: []config.Peer{{PublicKey: two, Remove: true}}}, []config.PeerStatus{{PublicKey: one}}},
		{"all others go", config.Device{ReplacePeers: true, Peers: []config.Peer{{PublicKey: two}}}, []config.PeerStatus{{PublicKey: two}}},
	} {
		want := h.Status()
		want.Peers = c.want
		for i := range want.Peers {
			want.Peers[i].Spread.Reason = "there is no session yet"
			want.Peers[i].PathMTU.State = config.PathMTUUnknown
			want.Peers[i].PostQuantum.Policy = config.DefaultPostQuantum
		}
		h.Apply(c.change)
		sameStatus(t, h.Status(), want)
		if t.Failed() {
			t.Fatal(c.name)
		}
	}
}

func TestRemovingPeerRemovesItsRoutes(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{})
	talk(t, a, b)
	bothSpread(t, a, b) // no hello is in flight
	a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Remove: true}}})
	a.Send(flow.WithVnetHeader(a.To(b, 1, true).UDP(nil)))
	a.Await("the packet has no peer", func() bool { return a.Drops(drop.TXNoPeer) == 1 })
	b.Send(flow.WithVnetHeader(b.To(a, 1, true).UDP(nil)))
	a.Await("messages from the removed peer are dropped", func() bool { return a.Drops(drop.RXUnknownIndex) >= 1 }) // b may probe the path, too
}

func TestNewIdentityEndsAllSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		a.Key = newKey(t)
		a.Apply(config.Device{PrivateKey: &a.Key})
		if n := a.Indices(); n != 0 {
			t.Errorf("%d receiver indices are left of the old identity", n)
		}
		b.Apply(config.Device{ReplacePeers: true, Peers: []config.Peer{a.AsPeer(false)}})
		talk(t, a, b)
		a.Apply(config.Device{PrivateKey: &noise.PrivateKey{}})
		if s := a.Status(); !s.PrivateKey.IsZero() || !s.PublicKey.IsZero() || a.Indices() != 0 {
			t.Error("the identity is still there")
		}
	})
}

func TestNewIdentityWaitsForNoEarlierHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		a.Key = newKey(t)
		b.Apply(config.Device{ReplacePeers: true, Peers: []config.Peer{a.AsPeer(false)}})
		a.Apply(config.Device{PrivateKey: &a.Key})
		begin := time.Now()
		carries(t, a, b, false, 100)
		if took := time.Since(begin); took >= time.Second {
			t.Errorf("the first packet took %v, want less than 1s", took)
		}
	})
}

func TestDeviceRejectsItselfAsPeer(t *testing.T) {
	h := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{})
	next := newKey(t)
	h.Apply(config.Device{Peers: []config.Peer{{PublicKey: next.Public()}}})
	h.Apply(config.Device{PrivateKey: &next})
	if n := len(h.Status().Peers); n != 0 {
		t.Errorf("%d peers, want that with the device's own key gone", n)
	}
}

func TestFirewallMarkReachesThePort(t *testing.T) {
	var mu sync.Mutex
	var ports []*underlaytest.Fake
	h := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port {
		mu.Lock()
		defer mu.Unlock()
		ports = append(ports, p.(*underlaytest.Fake))
		return p
	}})
	mark := uint32(0xca6c)
	h.Apply(config.Device{FwMark: &mark})
	mu.Lock()
	defer mu.Unlock()
	if len(ports) != 1 || ports[0].Mark() != mark || h.Status().FwMark != mark {
		t.Errorf("%d ports, mark %#x", len(ports), ports[0].Mark())
	}
}

// TestListenPortChangesUnderLoad changes the port: some packets are lost, but the order is kept and traffic continues.
func TestListenPortChangesUnderLoad(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{Depth: 4096})
	check := flow.Checker{Lossy: true}
	b.Watch(func(_ int, e []byte) {
		if err := check.Take(e); err != nil {
			t.Error(err)
		}
	})
	talkOneWay(t, a, b, &check)
	stop, f := make(chan struct{}), flow.Flow{Ends: a.To(b, 5, false), ID: 5}
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				a.Send(f.Next(200), f.Train(10, 500))
				time.Sleep(50 * time.Microsecond)
			}
		}
	})
	for i := range uint16(30) {
		port := 10000 + i
		a.Apply(config.Device{ListenPort: &port})
		seen := check.Total()
		a.Await("traffic continues", func() bool { return check.Total() > seen+20 || t.Failed() })
	}
	// The last counted packet may still have come from the old port.
	a.Await("the peer is believed at the last port", func() bool {
		return b.PeerStatus(a).Endpoint.AddrPort == a.Outside(false) || t.Failed()
	})
	close(stop)
	sender.Wait()
}

// talkOneWay starts a session.
func talkOneWay(t *testing.T, a, b *devicetest.Host, check *flow.Checker) {
	t.Helper()
	a.Send((&flow.Flow{Ends: a.To(b, 4, false), ID: 4}).Next(100))
	a.Await("the first packet has arrived", func() bool { return check.Total() > 0 || t.Failed() })
}

// TestPeersComeAndGoUnderLoad removes the peer that is talked to, and adds it again.
func TestPeersComeAndGoUnderLoad(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{Lanes: 2, Depth: 4096})
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for i, ends := range [][2]*devicetest.Host{{a, b}, {b, a}} {
		ends[1].Watch(func(int, []byte) {})
		senders.Go(func() {
			f := flow.Flow{Ends: ends[0].To(ends[1], uint16(i), false)}
			for {
				select {
				case <-stop:
					return
				default:
					ends[0].SendOn(i, f.Next(100))
					time.Sleep(20 * time.Microsecond)
				}
			}
		})
	}
	for range 30 {
		time.Sleep(time.Millisecond)
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Remove: true}}})
		if _, known := peerKeys(a)[b.Public()]; known {
			t.Fatal("the peer is still there")
		}
		a.Apply(config.Device{Peers: []config.Peer{b.AsPeer(false)}})
	}
	close(stop)
	senders.Wait()
	a.Await("a session is there in the end", func() bool { return !a.PeerStatus(b).LastHandshake.IsZero() || initiate(a, b) })
	a.Apply(config.Device{ReplacePeers: true})
	b.Apply(config.Device{ReplacePeers: true})
	if a.Indices() != 0 || b.Indices() != 0 {
		t.Errorf("%d and %d receiver indices are left", a.Indices(), b.Indices())
	}
}

// initiate starts a handshake, and always returns false.
func initiate(a, b *devicetest.Host) bool {
	time.Sleep(25 * time.Millisecond) // b answers one per 20 ms
	a.PeerOf(b.Public()).Initiate()
	return false
}

func peerKeys(h *devicetest.Host) map[noise.PublicKey]struct{} {
	keys := map[noise.PublicKey]struct{}{}
	for p := range slices.Values(h.Status().Peers) {
		keys[p.PublicKey] = struct{}{}
	}
	return keys
}
