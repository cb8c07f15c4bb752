// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	wg "golang.zx2c4.com/wireguard/device"
	wgtuntest "golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// stock is a wireguard-go device on the loopback, host number 9, and one of ours that it is connected with.
type stock struct {
	t   *testing.T
	dev *wg.Device
	tun *wgtuntest.ChannelTUN
	key noise.PrivateKey
	h   *devicetest.Host
}

const stockN = 9

// newStock returns a wireguard-go device that fails the test when it logs an error.
func newStock(t *testing.T) *stock {
	t.Helper()
	s := &stock{t: t, tun: wgtuntest.NewChannelTUN(), key: newKey(t)}
	var closing atomic.Bool
	s.dev = wg.NewDevice(s.tun.TUN(), conn.NewStdNetBind(), &wg.Logger{
		Verbosef: wg.DiscardLogf,
		Errorf: func(format string, args ...any) {
			if !closing.Load() {
				t.Errorf("wireguard-go: "+format, args...)
			}
		},
	})
	t.Cleanup(func() {
		closing.Store(true)
		s.dev.Close()
	})
	s.set("private_key=%s\nlisten_port=0", s.key.Hex())
	if err := s.dev.Up(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stock) set(format string, args ...any) {
	s.t.Helper()
	if err := s.dev.IpcSet(fmt.Sprintf(format, args...)); err != nil {
		s.t.Fatal(err)
	}
}

// get returns the value of a key of the UAPI.
func (s *stock) get(key string) string {
	s.t.Helper()
	all, err := s.dev.IpcGet()
	if err != nil {
		s.t.Fatal(err)
	}
	_, value, _ := strings.Cut("\n"+all, "\n"+key+"=")
	value, _, _ = strings.Cut(value, "\n")
	return value
}

// endpoint is where wireguard-go listens.
func (s *stock) endpoint(v6 bool) netip.AddrPort {
	addr := "127.0.0.1"
	if v6 {
		addr = "::1"
	}
	return netip.MustParseAddrPort(net.JoinHostPort(addr, s.get("listen_port")))
}

// connect makes s and one of our hosts each other's peers. Only one of them learns where the other is.
func (s *stock) connect(h *devicetest.Host, weInitiate, v6 bool, psk noise.PresharedKey) {
	s.t.Helper()
	s.h = h
	in4, in6 := devicetest.Inner(stockN)
	us4, us6 := devicetest.Inner(h.N)
	theirs := config.Peer{
		PublicKey: s.key.Public(), PresharedKey: &psk,
		AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(in4, 32)}, {Prefix: netip.PrefixFrom(in6, 128)}},
	}
	endpoint := ""
	if weInitiate {
		theirs.Endpoint = &config.Endpoint{AddrPort: s.endpoint(v6)}
	} else {
		endpoint = "endpoint=" + h.Outside(v6).String() + "\n"
	}
	h.Apply(config.Device{Peers: []config.Peer{theirs}})
	s.set("public_key=%s\npreshared_key=%s\n%sallowed_ip=%s/32\nallowed_ip=%s/128", h.Public().Hex(), psk.Hex(), endpoint, us4, us6)
}

// receives proves that one packet of the given size gets from us to wireguard-go.
func (s *stock) receives(v6 bool, size int) {
	s.t.Helper()
	p := sized(devicetest.Ends(s.h.N, stockN, 1, v6), size)
	s.h.Send(flow.WithVnetHeader(p))
	s.gets(p)
}

func (s *stock) gets(p []byte) {
	s.t.Helper()
	if got := s.next(); !bytes.Equal(got, p) {
		s.t.Fatalf("wireguard-go got\n% x, want\n% x", got, p)
	}
}

// next returns the next packet that wireguard-go has received. It looks once more after the timeout, which also fires when this whole process
// stood still.
func (s *stock) next() []byte {
	s.t.Helper()
	for _, wait := range []time.Duration{devicetest.Patience, time.Second} {
		select {
		case got := <-s.tun.Inbound:
			return got
		case <-time.After(wait):
		}
	}
	s.t.Fatalf("wireguard-go got nothing: it has received %s B, sent %s B, and made a handshake at %s s. We dropped %v",
		s.get("rx_bytes"), s.get("tx_bytes"), s.get("last_handshake_time_sec"), s.h.AllDrops())
	return nil
}

// sends proves that one packet of the given size gets from wireguard-go to us.
func (s *stock) sends(v6 bool, size int) {
	s.t.Helper()
	p := sized(devicetest.Ends(stockN, s.h.N, 1, v6), size)
	s.tun.Outbound <- p
	if got := s.h.Next(); len(got) != 1 || !bytes.Equal(got[0], p) {
		s.t.Fatalf("got %x, want\n% x", got, p)
	}
}

// sized returns a UDP packet of size bytes.
func sized(ends flow.Ends, size int) []byte {
	header := 28
	if ends.V6() {
		header = 48
	}
	return ends.UDP(make([]byte, size-header))
}

func hasIPv6(t *testing.T) bool {
	t.Helper()
	c, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

func TestInteropWithWireGuardGo(t *testing.T) {
	for _, c := range []struct {
		name           string
		weInitiate, v6 bool
		psk            bool
	}{
		{"we initiate over IPv4", true, false, false},
		{"it initiates over IPv4 with a preshared key", false, false, true},
		{"we initiate over IPv6 with a preshared key", true, true, true},
		{"it initiates over IPv6", false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.v6 && !hasIPv6(t) {
				t.Skip("this host has no IPv6 on its loopback")
			}
			s, psk := newStock(t), noise.PresharedKey{}
			if c.psk {
				psk = *newPSK(t)
			}
			s.connect(devicetest.NewUDP(t, 1, devicetest.Options{}), c.weInitiate, c.v6, psk)
			first, second := s.receives, s.sends
			if !c.weInitiate {
				first, second = second, first
			}
			first(false, 28) // no payload
			for _, inner6 := range []bool{false, true} {
				for _, size := range []int{48, 63, 64, 65, 1420} {
					first(inner6, size)
					second(inner6, size)
				}
			}
			wantNoDrops(t, s.h)
		})
	}
}

// TestInteropTrains sends the segments of one TSO packet of Linux.
func TestInteropTrains(t *testing.T) {
	s := newStock(t)
	s.connect(devicetest.NewUDP(t, 1, devicetest.Options{}), true, false, noise.PresharedKey{})
	f := flow.Flow{Ends: devicetest.Ends(1, stockN, 1, false)}
	for range 10 { // the first ones wait for the handshake
		train := f.Train(40, 1380)
		packets, err := flow.Packets(train)
		if err != nil {
			t.Fatal(err)
		}
		s.h.Send(train)
		for _, p := range packets {
			s.gets(p)
		}
	}
}

func TestInteropRekeysAndKeepsTheSession(t *testing.T) {
	s := newStock(t)
	s.connect(devicetest.NewUDP(t, 1, devicetest.Options{}), true, false, noise.PresharedKey{})
	s.receives(false, 100)
	p := s.h.PeerOf(s.key.Public())
	for range 5 {
		before, _ := p.Sessions()
		time.Sleep(60 * time.Millisecond) // wireguard-go takes no more than one initiation per 20 ms
		p.Initiate()
		s.h.Await("there is a new session", func() bool {
			now, _ := p.Sessions()
			return now != before
		})
		s.receives(true, 1000)
		s.sends(false, 1000)
	}
	s.h.Await("it has counted all", func() bool { return s.get("last_handshake_time_sec") != "0" })
}

func TestInteropWrongPresharedKeyAndItsCorrection(t *testing.T) {
	t.Parallel()
	s := newStock(t)
	h := devicetest.NewUDP(t, 1, devicetest.Options{})
	s.connect(h, true, false, *newPSK(t))
	right := newPSK(t)
	s.set("public_key=%s\npreshared_key=%s", h.Public().Hex(), right.Hex())
	h.Send(flow.WithVnetHeader(sized(devicetest.Ends(1, stockN, 1, false), 100)))
	h.Await("its response is refused", func() bool { return h.Drops(drop.HSInvalid) > 0 })
	if !h.Status().Peers[0].LastHandshake.IsZero() {
		t.Fatal("a handshake with the wrong preshared key completed")
	}
	h.Apply(config.Device{Peers: []config.Peer{{PublicKey: s.key.Public(), UpdateOnly: true, PresharedKey: right}}})
	s.gets(sized(devicetest.Ends(1, stockN, 1, false), 100)) // by the retry after 5 s
	s.sends(false, 100)
}

func TestInteropFollowsRoamingPeer(t *testing.T) {
	s := newStock(t)
	s.connect(devicetest.NewUDP(t, 1, devicetest.Options{}), true, false, noise.PresharedKey{})
	s.receives(false, 100)
	s.sends(false, 100)
	for range 3 {
		old := s.endpoint(false)
		s.set("listen_port=0")
		if s.endpoint(false) == old {
			s.set("listen_port=0")
		}
		s.sends(false, 200)
		if got := s.h.Status().Peers[0].Endpoint.AddrPort; got != s.endpoint(false) {
			t.Errorf("we believe it at %v, it is at %v", got, s.endpoint(false))
		}
		s.receives(false, 200)
	}
	port := uint16(0)
	s.h.Apply(config.Device{ListenPort: &port})
	s.receives(false, 300)
	s.sends(false, 300)
	if got, want := s.get("endpoint"), s.h.Outside(false).String(); got != want {
		t.Errorf("it believes us at %s, we are at %s", got, want)
	}
}

func TestInteropKeepalives(t *testing.T) {
	t.Parallel()
	s := newStock(t)
	s.connect(devicetest.NewUDP(t, 1, devicetest.Options{}), true, false, noise.PresharedKey{})
	every := uint16(1)
	s.h.Apply(config.Device{Peers: []config.Peer{{PublicKey: s.key.Public(), Keepalive: &every}}})
	s.h.Await("two keepalives were sent after the handshake", func() bool {
		return s.h.Status().Peers[0].TxBytes >= wire.InitiationSize+3*wire.KeepaliveSize
	})
	s.h.Await("they were accepted", func() bool {
		return s.get("rx_bytes") == fmt.Sprint(s.h.Status().Peers[0].TxBytes)
	})
	s.set("public_key=%s\npersistent_keepalive_interval=1", s.h.Public().Hex())
	before := s.h.Status().Peers[0].RxBytes
	s.h.Await("its keepalives are accepted", func() bool {
		return s.h.Status().Peers[0].RxBytes >= before+2*wire.KeepaliveSize
	})
	wantNoDrops(t, s.h)
}

// flood keeps a device under load with valid initiations from an unknown peer, until stopped.
func flood(t *testing.T, key noise.PublicKey, burst int, send func(msg []byte)) (stop func()) {
	t.Helper()
	s := &stranger{t: t, key: newKey(t)}
	var err error
	if s.id, err = noise.NewIdentity(s.key); err != nil {
		t.Fatal(err)
	}
	msg := s.initiationTo(key, 1, at(1))
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			for range burst {
				send(msg)
			}
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() { close(done); <-ended }
}

// dial returns a function that sends datagrams.
func dial(t *testing.T, to netip.AddrPort) func(datagram []byte) {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return func(datagram []byte) { _, _ = c.Write(datagram) }
}

// TestInteropCookieFromLoadedPeer has wireguard-go under load: we understand its cookie and get in with it.
func TestInteropCookieFromLoadedPeer(t *testing.T) {
	t.Parallel()
	s := newStock(t)
	sent := &sentMessages{}
	h := devicetest.NewUDP(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port {
		sent.Port = p
		return sent
	}})
	s.connect(h, true, false, noise.PresharedKey{})
	stop := flood(t, s.key.Public(), 150*runtime.NumCPU(), dial(t, s.endpoint(false)))
	defer stop()
	for begin := time.Now(); !s.dev.IsUnderLoad(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Skipf("%d cores cannot be brought under load by one sender", runtime.NumCPU())
		}
	}
	p, began, next, tries := h.PeerOf(s.key.Public()), time.Now(), time.Now(), 0
	unloaded := false // in this long a time under load, there would be three times as many tries
	h.Await("one of our initiations bears a cookie", func() bool {
		if s.dev.IsUnderLoad() && time.Now().After(next) {
			p.Initiate()
			tries++
			next = time.Now().Add(time.Duration(min(tries, 5)) * 2 * time.Second) // a reply, which may be late, answers the last initiation only
		}
		unloaded = tries < 5 && time.Since(began) > 2*time.Minute
		return sent.mac2.Load() || unloaded
	})
	if unloaded {
		t.Skipf("%d cores cannot be kept under load by one sender: %d initiations in two minutes", runtime.NumCPU(), tries)
	}
	s.receives(false, 100)
	s.sends(false, 100)
}

// sentMessages notices handshake messages with a cookie.
type sentMessages struct {
	underlay.Port
	mac2 atomic.Bool
}

// SendTo implements underlay.Port.
func (s *sentMessages) SendTo(to *underlay.Endpoint, datagram []byte) error {
	if hasMAC2(datagram) {
		s.mac2.Store(true)
	}
	return s.Port.SendTo(to, datagram)
}

// TestInteropCookieForAPeer has us under load: wireguard-go understands our cookie and gets in with it.
func TestInteropCookieForAPeer(t *testing.T) {
	t.Parallel()
	s := newStock(t)
	h := devicetest.NewUDP(t, 1, devicetest.Options{})
	s.connect(h, false, false, noise.PresharedKey{})
	nobody := underlay.Endpoint{Dst: netip.MustParseAddrPort("127.0.0.1:9")}
	stop := flood(t, h.Public(), 2000, func(msg []byte) { h.Handshake(msg, nobody) })
	defer stop()
	h.Await("we are under load", func() bool { return h.Drops(drop.HSNoCookie) > 0 })
	p := sized(devicetest.Ends(stockN, 1, 1, false), 100)
	s.tun.Outbound <- p
	if got := h.Next(); len(got) != 1 || !bytes.Equal(got[0], p) {
		t.Fatalf("got %x", got)
	}
}

// TestWireGuardGoWithEffectiveKeyAnswers: an initiation that names a key is WireGuard's, and completes with its effective preshared key, or with the
// configured one.
func TestWireGuardGoWithEffectiveKeyAnswers(t *testing.T) {
	for _, named := range []bool{true, false} {
		s, h := newStock(t), devicetest.NewUDP(t, 1, devicetest.Options{})
		setPostQuantum(config.PostQuantumAuto, h)
		psk := noise.PresharedKey{1, 2, 3}
		s.connect(h, true, false, psk)
		h.PutKey(s.key.Public(), noise.PresharedKey{4, 5, 6}, 7)
		if named {
			e := h.EffectiveKey(s.key.Public(), psk, 7)
			s.set("public_key=%s\npreshared_key=%s", h.Public().Hex(), e.Hex())
		}
		s.receives(false, 100)
		s.sends(false, 100)
		r := h.Stats().(device.Stats).PostQuantum
		want := uint64(1)
		if named {
			want = 0
		}
		if r.Peers[s.key.Public().Base64()].Active != named || r.Fallbacks != want {
			t.Errorf("with the effective key %v: got %+v, want active %v and %d fallbacks", named, r, named, want)
		}
	}
}
