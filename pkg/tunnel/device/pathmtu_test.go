// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// ipv4Headers are the outer headers of a test network's datagrams, in bytes.
const ipv4Headers = 28

// pathMTUKnown reports whether the path MTU from a to b was confirmed.
func pathMTUKnown(a, b *devicetest.Host) func() bool {
	return func() bool { return a.PeerStatus(b).PathMTU.State == config.PathMTUConfirmed }
}

// narrowPair is two hosts with a session, on a network that drops larger IPv4 packets than mtu silently.
func narrowPair(t *testing.T, bytes int64) (a, b *devicetest.Host, mtu *atomic.Int64) {
	t.Helper()
	mtu = new(atomic.Int64)
	mtu.Store(bytes)
	w := &wiretap{lose: func(d tapped) bool { return d.size+ipv4Headers > int(mtu.Load()) }}
	a, b = tappedPair(t, w, devicetest.Options{})
	talk(t, a, b)
	return a, b, mtu
}

// converse carries packets both ways for so many seconds, enough to be large traffic.
func converse(t *testing.T, a, b *devicetest.Host, seconds int) {
	t.Helper()
	for range seconds {
		for range 8 {
			carries(t, a, b, false, 1000)
			carries(t, b, a, false, 1000)
		}
		time.Sleep(time.Second)
	}
}

// strain is converse with packets of any size, which may be lost.
func strain(a, b *devicetest.Host, seconds, payload int) {
	for range 8 * seconds {
		for _, x := range [][2]*devicetest.Host{{a, b}, {b, a}} {
			x[0].Send(flow.WithVnetHeader(x[0].To(x[1], 1000, false).UDP(make([]byte, payload))))
		}
		time.Sleep(time.Second / 8)
	}
}

func wantPathMTU(t *testing.T, a, b *devicetest.Host, size, inner int) {
	t.Helper()
	got := a.PeerStatus(b).PathMTU
	if got.State != config.PathMTUConfirmed || got.Bytes != size || got.InnerBytes != inner {
		t.Errorf("got path MTU %+v, want %d confirmed, and %d inside", got, size, inner)
	}
}

func TestPathMTUIsConfirmedByOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		talk(t, a, b)
		time.Sleep(5 * time.Second)
		wantPathMTU(t, a, b, 1480, 0)
		wantPathMTU(t, b, a, 1480, 0)
		if n := w.count(a.N, tapped.probe); n != 1 {
			t.Errorf("got %d probes, want one", n)
		}
	})
}

func TestSilentlyDroppingPathIsMeasured(t *testing.T) {
	for path, inner := range map[int64]int{1280: 1216, 1400: 1328, 1436: 1376, 1479: 1408} {
		t.Run(fmt.Sprint(path), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, _ := narrowPair(t, path)
				converse(t, a, b, 60)
				for _, side := range [][2]*devicetest.Host{{a, b}, {b, a}} {
					got := side[0].PeerStatus(side[1]).PathMTU
					if got.State != config.PathMTUConfirmed || int64(got.Bytes) > path || got.InnerBytes != inner {
						t.Errorf("got path MTU %+v, want at most %d confirmed, and %d inside", got, path, inner)
					}
				}
			})
		})
	}
}

func TestShrunkenPathIsMeasuredUnderTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, mtu := narrowPair(t, 1500)
		drain(t, a)
		drain(t, b)
		strain(a, b, 5, 1392)
		wantPathMTU(t, a, b, 1480, 0)
		mtu.Store(1400)
		strain(a, b, 60, 1392)
		strain(a, b, 120, 1000)
		wantPathMTU(t, a, b, 1400, 1328)
		mtu.Store(1500)
		strain(a, b, 700, 1000)
		wantPathMTU(t, a, b, 1480, 0)
	})
}

// TestShrunkenPathIsMeasuredBehindNAT has no source ports, and so no counts but that of all messages.
func TestShrunkenPathIsMeasuredBehindNAT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mtu atomic.Int64
		mtu.Store(1500)
		w := &wiretap{lose: func(d tapped) bool { return d.size+ipv4Headers > int(mtu.Load()) }}
		lan := devicetest.NewLAN(w.filter)
		a := lan.Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port { return translated{p} }})
		b := lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		drain(t, a)
		drain(t, b)
		strain(a, b, 5, 1392)
		wantPathMTU(t, a, b, 1480, 0)
		mtu.Store(1400)
		strain(a, b, 60, 1392)
		strain(a, b, 120, 1000)
		wantPathMTU(t, a, b, 1400, 1328)
	})
}

func TestRoamingRestartsPathMTUSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, mtu := narrowPair(t, 1400)
		converse(t, a, b, 60)
		wantPathMTU(t, a, b, 1400, 1328)
		mtu.Store(1500)
		port := uint16(devicetest.ListenPort + 1)
		b.Apply(config.Device{ListenPort: &port})
		converse(t, b, a, 10)
		wantPathMTU(t, a, b, 1480, 0)
	})
}

// TestRoamedPeerHasNewBurst has a peer move to a narrower path, after the search has used up the burst of probes, and while little is sent.
func TestRoamedPeerHasNewBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, mtu := narrowPair(t, 1400)
		time.Sleep(30 * time.Second)
		mtu.Store(1300)
		port := uint16(devicetest.ListenPort + 1)
		b.Apply(config.Device{ListenPort: &port})
		carries(t, b, a, false, 1000)
		time.Sleep(15 * time.Second)
		if got := a.PeerStatus(b).PathMTU; got.Bytes > 1300 || got.Bytes < 1280 {
			t.Errorf("got path MTU %+v, want 1280 to 1300", got)
		}
	})
}

func TestNewMTURestartsPathMTUSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := narrowPair(t, 9000)
		time.Sleep(5 * time.Second)
		a.TUN.SetMTU(8940)
		time.Sleep(5 * time.Second)
		wantPathMTU(t, a, b, 9000, 0)
	})
}

// TestSmallerMTUNeedsNoPathMTUSearch: the size that has passed the path is larger.
func TestSmallerMTUNeedsNoPathMTUSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, path := range []int64{1500, 1400} {
			w := &wiretap{lose: func(d tapped) bool { return d.size+ipv4Headers > int(path) }}
			a, b := tappedPair(t, w, devicetest.Options{})
			converse(t, a, b, 60)
			w.forget()
			changes := 20
			for i := range changes {
				a.TUN.SetMTU(1300 - i)
				time.Sleep(time.Second)
			}
			wantPathMTU(t, a, b, 1360-(changes-1), 0)
			large := func(d tapped) bool { return d.kind == wire.TypeData && d.size > 1000 }
			if n := w.count(a.N, large); n > 2 { // those that confirm what data uses
				t.Errorf("path MTU %d: %d smaller MTUs caused %d probes", path, changes, n)
			}
		}
	})
}

func TestPeerWithoutHellosGetsNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{})
		off := config.SpreadOff
		b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		talk(t, a, b)
		time.Sleep(20 * time.Second)
		if n := w.count(a.N, tapped.probe); n != 0 {
			t.Errorf("got %d probes, want 0", n)
		}
		if got := a.PeerStatus(b).PathMTU.State; got != config.PathMTUUnknown {
			t.Errorf("got state %s, want %s", got, config.PathMTUUnknown)
		}
	})
}

func TestMalformedProbeIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		time.Sleep(time.Second)
		p := b.PeerOf(a.Public())
		for plain, want := range map[string]string{"\x00rwm": "hello_invalid", "\x00rwm\x02": "hello_version"} {
			if got := p.Hello([]byte(plain), underlay.Endpoint{Dst: a.Outside(false)}); got.String() != want {
				t.Errorf("%q: got %v, want %s", plain, got, want)
			}
		}
	})
}

// TestProbesAndAnswersAreLimited has a peer that sends too many of one, which leaves room for the other.
func TestProbesAndAnswersAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		time.Sleep(1500 * time.Millisecond)
		p := b.PeerOf(a.Public())
		for _, kind := range []wire.ProbeKind{wire.ProbeSize, wire.ProbeAnswer, wire.ProbeRequest, wire.ProbeReport} {
			refused := 0
			for range 20 {
				probe := wire.Probe{Kind: kind, ID: 1, Size: wire.MinProbeSize}
				if p.Hello(wire.AppendProbe(nil, &probe), underlay.Endpoint{Dst: a.Outside(false)}) == drop.HelloUnwanted {
					refused++
				}
			}
			if refused != 12 {
				t.Errorf("%v: got %d of 20 refused, want 12", kind, refused)
			}
		}
	})
}

// TestUnansweredProbesAreReported has a path that carries small messages alone, and a route that says otherwise.
func TestUnansweredProbesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wiretap{lose: func(d tapped) bool { return d.size+ipv4Headers > 400 }}
		a, b := tappedPair(t, w, devicetest.Options{Route: func(*underlay.Endpoint, uint32) device.Route { return device.Route{MTU: 1500} }})
		talk(t, a, b)
		time.Sleep(30 * time.Second)
		if got := a.PeerStatus(b).PathMTU; got.State != config.PathMTUUnreachable {
			t.Errorf("got %+v, want %s", got, config.PathMTUUnreachable)
		}
	})
}

// TestLimitOutlivesPause has a peer that returns after its sessions were erased.
func TestLimitOutlivesPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := narrowPair(t, 1400)
		converse(t, a, b, 60)
		wantPathMTU(t, a, b, 1400, 1328)
		time.Sleep(12 * time.Minute)
		carries(t, a, b, false, 1000)
		carries(t, b, a, false, 1000)
		time.Sleep(100 * time.Millisecond)
		if got := a.PeerStatus(b).PathMTU; got.InnerBytes != 1328 {
			t.Errorf("got %+v, want 1328 inside before the search is complete", got)
		}
	})
}

// TestRoamingPeerGetsFewProbes has a peer that moves with every message: it decides where probes go, and they are larger than its messages.
func TestRoamingPeerGetsFewProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wiretap
		a, b := tappedPair(t, &w, devicetest.Options{Route: func(*underlay.Endpoint, uint32) device.Route { return device.Route{MTU: 1500} }})
		wantSoon(t, a, b)
		w.forget()
		for i := range uint16(1000) {
			a.PeerOf(b.Public()).Roam(underlay.Endpoint{Dst: netip.AddrPortFrom(b.Outside(false).Addr(), 4000+i%2)})
			time.Sleep(time.Millisecond)
		}
		if n := w.count(a.N, tapped.probe); n > 5 {
			t.Errorf("got %d probes in a second, want four", n)
		}
	})
}

// flap is strain while a NAT with two uplinks sends b's packets from two ports in turn.
func flap(a, b *devicetest.Host, seconds int) {
	p, at := a.PeerOf(b.Public()), b.Outside(false)
	for range seconds {
		for range 2 {
			p.Roam(underlay.Endpoint{Dst: netip.AddrPortFrom(at.Addr(), 40000)})
			p.Roam(underlay.Endpoint{Dst: at})
			time.Sleep(200 * time.Millisecond)
		}
		strain(a, b, 1, 1392)
	}
}

// TestPathMTUIsMeasuredBehindFlappingNAT has a host that does not know that it roams.
func TestPathMTUIsMeasuredBehindFlappingNAT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, mtu := narrowPair(t, 1500)
		drain(t, a)
		drain(t, b)
		flap(a, b, 80)
		mtu.Store(1400)
		flap(a, b, 200) // a search has few probes
		wantPathMTU(t, b, a, 1400, 1328)
	})
}

// TestPathMTULimitOutlastsRoaming has a NAT that moves a host for a moment every half minute.
func TestPathMTULimitOutlastsRoaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := narrowPair(t, 1400)
		converse(t, a, b, 60)
		wantPathMTU(t, b, a, 1400, 1328)
		p, at := a.PeerOf(b.Public()), b.Outside(false)
		for range 10 {
			p.Roam(underlay.Endpoint{Dst: netip.AddrPortFrom(at.Addr(), 40000)})
			p.Roam(underlay.Endpoint{Dst: at})
			for range 30 {
				converse(t, a, b, 1)
				for _, side := range [][2]*devicetest.Host{{a, b}, {b, a}} {
					if got := side[0].PeerStatus(side[1]).PathMTU; got.InnerBytes != 1328 {
						t.Fatalf("got path MTU %+v, want 1328 inside", got)
					}
				}
			}
		}
	})
}
