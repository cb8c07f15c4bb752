// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/program"
)

// older is a ropewalk of before post-quantum exchanges; make test-older builds it.
var older = &program.Program{Env: "ROPEWALK_OLDER_BIN"}

var (
	exchanging = implementation{name: "ropewalk", need: needRopewalk, start: startExchanging}
	outdated   = implementation{name: "older ropewalk", need: needOlder, start: func(t *testing.T, h *host, ifname string) func() error {
		t.Helper()
		return startDaemon(t, h, older.Need(t), "run", ifname)
	}}
)

func startExchanging(t *testing.T, h *host, ifname string) func() error {
	t.Helper()
	return startDaemon(t, h, ropewalkBinary.Need(t), "run", "--post-quantum", "auto", ifname)
}

func needOlder(t *testing.T) {
	t.Helper()
	if os.Getenv(older.Env) == "" {
		t.Skip("needs an older build in " + older.Env + " (make test-older)")
	}
}

// postQuantum returns what `ropewalk show --json` says of the only peer.
func (x *tunnel) postQuantum(t *testing.T) config.PeerPostQuantum {
	t.Helper()
	out, err := exec.Command(ropewalkBinary.Need(t), "show", x.ifname, "--json").Output()
	expect.NoError(t, err)
	var shown struct {
		Interfaces []struct {
			Peers []struct {
				PostQuantum config.PeerPostQuantum `json:"post_quantum"`
			} `json:"peers"`
		} `json:"interfaces"`
	}
	expect.NoError(t, json.Unmarshal(out, &shown))
	if len(shown.Interfaces) != 1 || len(shown.Interfaces[0].Peers) != 1 {
		t.Fatalf("show --json has not one interface with one peer: %s", out)
	}
	return shown.Interfaces[0].Peers[0].PostQuantum
}

// wantPostQuantum waits until the tunnel reports a session with a key, or one without for the given reason.
func (x *tunnel) wantPostQuantum(t *testing.T, to netip.Addr, active bool, reason string) {
	t.Helper()
	expect.EventuallyNoError(t, fmt.Sprintf("%s to report a post-quantum session: %v", x, active), func() error {
		if err := tryExchange(x, to, 100, retryInterval, time.Second); err != nil {
			return err
		}
		if got := x.postQuantum(t); got.Active != active || got.Reason != reason {
			return fmt.Errorf("got %+v, want the reason %q", got, reason)
		}
		return nil
	})
}

// TestNoPacketIsLostAtTheChange echoes 20,000 datagrams, a few at a time, from before the first handshake until sessions have keys. Each is sent once.
func TestNoPacketIsLostAtTheChange(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	needRopewalk(t)
	l := newLab(t, pairing{exchanging, exchanging}, false)
	l.start(t)
	serveEcho(t, l.right.host)
	c, err := dialUDP(l.left.host, netip.AddrPortFrom(l.right.inner4.Addr(), echoPort))
	expect.NoError(t, err)
	defer c.Close()
	const packets, window = 20_000, 32
	back, buf := make([]bool, packets), make([]byte, 2048)
	for sent, received := 0, 0; received < packets; {
		for ; sent < min(received+window, packets); sent++ {
			_, err := c.Write(binary.BigEndian.AppendUint64(make([]byte, 992), uint64(sent)))
			expect.NoError(t, err)
		}
		expect.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		n, err := c.Read(buf)
		if err != nil {
			t.Fatalf("%d of %d datagrams are lost: %v, %+v", sent-received, sent, err, l.left.postQuantum(t))
		}
		if i := binary.BigEndian.Uint64(buf[n-8 : n]); !back[i] {
			back[i] = true
			received++
		}
	}
	l.left.wantPostQuantum(t, l.right.inner4.Addr(), true, "")
	if r := l.right.postQuantum(t); !r.Active {
		t.Errorf("got %+v at the other end, want a key", r)
	}
}

// TestStockPeerGetsNoExchange: the other end counts each message that is not WireGuard's.
func TestStockPeerGetsNoExchange(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	for _, stock := range stockImplementations() {
		t.Run(stock.name, func(t *testing.T) {
			t.Parallel()
			needRopewalk(t)
			stock.need(t)
			var process atomic.Pointer[daemon]
			if stock.name == wireguardGo.name {
				stock = verbose(&process)
			}
			l := newLab(t, pairing{exchanging, stock}, false)
			l.start(t)
			serveEcho(t, l.left.host)
			serveEcho(t, l.right.host)
			for i := range 4 {
				l.exchangeAfterRestart(t, i%2 == 1)
			}
			if d := process.Load(); d != nil {
				wantNoDrops(t, d)
			}
			if got := l.left.postQuantum(t); got.Active || got.Downgraded {
				t.Errorf("got %+v for a stock peer, want no key", got)
			}
		})
	}
}

// TestStockPeerAnswersWithEffectiveKey: an initiation that names a key is WireGuard's, and its session that of a stock peer with the effective key as its
// preshared key. A stock peer with the configured one is the peer that has lost the key.
func TestStockPeerAnswersWithEffectiveKey(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	for _, stock := range stockImplementations() {
		t.Run(stock.name, func(t *testing.T) {
			t.Parallel()
			stock.need(t)
			for _, held := range []bool{true, false} {
				s := newNamingSide(t, stock, held)
				if used := s.connect(t); used != held {
					t.Errorf("the stock peer has the effective key: %v, and its response was made with it: %v", held, used)
				}
				s.ping(t)
			}
		})
	}
}

// namingSide is a handshake's initiator that names a key, at a socket of its own.
type namingSide struct {
	lab      *lab
	remote   *noise.Remote
	socket   *net.UDPConn
	psk, own noise.PresharedKey // effective, configured
	keys     noise.Keys
}

const namedID = 0x1234

func newNamingSide(t *testing.T, stock implementation, held bool) *namingSide {
	t.Helper()
	s := &namingSide{lab: newLab(t, pairing{ropewalk, stock}, false), own: noise.PresharedKey{1, 2, 3}}
	var ring postquantum.Ring
	var ok bool
	if !ring.Restore([]postquantum.Entry{{Key: noise.PresharedKey{4, 5, 6}, ID: namedID, Certain: true}}) {
		t.Fatal("the ring refuses its key")
	}
	if s.psk, ok = ring.Effective(namedID, &s.own); !ok {
		t.Fatal("the ring has no effective key")
	}
	psk := wgtypes.Key(s.own)
	if held {
		psk = wgtypes.Key(s.psk)
	}
	l := s.lab
	l.right.start(t, l.left.asPeer(l.endpoint(l.left), &psk))
	identity, err := noise.NewIdentity(noise.PrivateKey(l.left.key))
	expect.NoError(t, err)
	s.remote, err = noise.NewRemote(identity, noise.PublicKey(l.right.key.PublicKey()))
	expect.NoError(t, err)
	expect.NoError(t, l.left.host.do(func() (err error) {
		s.socket, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(l.endpoint(l.left)), net.UDPAddrFromAddrPort(l.endpoint(l.right)))
		return err
	}))
	t.Cleanup(func() { s.socket.Close() })
	return s
}

// connect makes a session, and reports whether the response was made with the effective key.
func (s *namingSide) connect(t *testing.T) (effective bool) {
	t.Helper()
	var clock noise.Clock
	expect.EventuallyNoError(t, "a response to an initiation that names a key", func() error {
		i, msg := noise.NewInitiator(s.remote), new(wire.Initiation)
		if err := i.CreateInitiation(msg, 1, clock.Now(time.Now()).Naming(namedID), rand.Reader); err != nil {
			return err
		}
		if err := noise.NewCookieJar(s.remote).AddMACs(msg[:], 0); err != nil {
			return err
		}
		return s.ask(msg[:], func(answer []byte) error {
			keys, reason := i.ConsumeResponse(answer, &s.psk, &s.own)
			if reason != drop.None {
				return fmt.Errorf("the response is dropped: %v", reason)
			}
			s.keys = keys
			return nil
		})
	})
	return s.keys.Preshared == 0
}

// ask sends a message until there is an answer that f takes.
func (s *namingSide) ask(msg []byte, f func(answer []byte) error) error {
	if _, err := s.socket.Write(msg); err != nil {
		return err
	}
	buf, last := make([]byte, 2048), errors.New("no answer")
	_ = s.socket.SetReadDeadline(time.Now().Add(retryInterval)) // it cannot fail on an open socket
	for {
		n, err := s.socket.Read(buf)
		if err != nil {
			return errors.Join(last, err)
		}
		if last = f(buf[:n]); last == nil {
			return nil
		}
	}
}

// ping sends an echo request through the session, which the other end answers.
func (s *namingSide) ping(t *testing.T) {
	t.Helper()
	send, err := chacha20poly1305.New(s.keys.Send[:])
	expect.NoError(t, err)
	receive, err := chacha20poly1305.New(s.keys.Recv[:])
	expect.NoError(t, err)
	request := echoRequest(s.lab.left.inner4.Addr(), s.lab.right.inner4.Addr())
	counter := uint64(0)
	expect.EventuallyNoError(t, "the answer to a ping in the session", func() error {
		msg := make([]byte, wire.DataHeaderLen, wire.DataOverhead+len(request))
		wire.PutDataHeader(msg, s.keys.Remote, counter)
		msg = send.Seal(msg, nonceOf(counter), request, nil)
		counter++
		return s.ask(msg, func(answer []byte) error {
			if len(answer) < wire.DataOverhead || answer[0] != 4 {
				return errors.New("no data message")
			}
			inner, err := receive.Open(nil, nonceOf(binary.LittleEndian.Uint64(answer[8:])), answer[wire.DataHeaderLen:], nil)
			if err == nil && (len(inner) < 28 || inner[20] != 0 || !bytes.Equal(inner[12:16], request[16:20])) {
				err = fmt.Errorf("no echo reply: %x", inner)
			}
			return err
		})
	})
}

func nonceOf(counter uint64) []byte {
	return binary.LittleEndian.AppendUint64(make([]byte, 4, chacha20poly1305.NonceSize), counter)
}

// echoRequest returns an ICMP echo request of 32 bytes.
func echoRequest(from, to netip.Addr) []byte {
	b := make([]byte, 32)
	b[0], b[3], b[8], b[9], b[20], b[27] = 0x45, byte(len(b)), 64, 1, 8, 1
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	binary.BigEndian.PutUint16(b[10:], packet.Checksum(b[:20]))
	binary.BigEndian.PutUint16(b[22:], packet.Checksum(b[20:]))
	return b
}

// TestOlderReleaseInteroperates: a release of before exchanges gets none, from either side and after either restart. It may take the place of a newer one,
// whose peer then names a key that nobody has, and the reverse.
func TestOlderReleaseInteroperates(t *testing.T) {
	needOlder(t)
	requireTUN(t)
	t.Parallel()
	needRopewalk(t)
	forBothFamilies(t, func(t *testing.T, v6 bool) {
		t.Parallel()
		l := newLab(t, pairing{exchanging, outdated}, v6)
		l.start(t)
		serveEcho(t, l.left.host)
		serveEcho(t, l.right.host)
		for i := range 4 {
			first, second := l.pick(i%2 == 1)
			first.restart(t, l.peerOf(first))
			exchange(t, first, second.inner4.Addr(), 1000)
			exchange(t, second, first.inner6.Addr(), 1000)
			l.left.wantPostQuantum(t, l.right.inner4.Addr(), false, "the peer does not offer post-quantum keys")
		}
		for _, right := range []implementation{exchanging, outdated, exchanging} {
			l.right.impl.start = right.start
			l.right.restart(t, l.peerOf(l.right))
			if newer := right.name == exchanging.name; newer {
				l.left.wantPostQuantum(t, l.right.inner4.Addr(), true, "")
			} else {
				l.left.wantPostQuantum(t, l.right.inner4.Addr(), false, "the peer does not offer post-quantum keys")
			}
			exchange(t, l.right, l.left.inner6.Addr(), 1000)
		}
		for _, x := range l.both() {
			x.noErrors(t)
		}
	})
}
