// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// carries proves that one packet of the given size gets from a to b.
func carries(t *testing.T, a, b *devicetest.Host, v6 bool, size int) {
	t.Helper()
	header := 28
	if v6 {
		header = 48
	}
	payload := make([]byte, size-header)
	_, _ = rand.Read(payload)
	p := a.To(b, 1000, v6).UDP(payload)
	a.Send(flow.WithVnetHeader(p))
	if got := b.Next(); len(got) != 1 || !bytes.Equal(got[0], p) {
		t.Fatalf("host %d got %d packets, want the one that host %d sent", b.N, len(got), a.N)
	}
}

// talk proves that packets get through both ways, after which both sides send with the same session.
func talk(t *testing.T, a, b *devicetest.Host) {
	t.Helper()
	carries(t, a, b, false, 100)
	carries(t, b, a, false, 100)
}

// messages counts the messages on a LAN, by sender and type.
type messages struct {
	mu    sync.Mutex
	count map[netip.Addr]map[wire.Type]int
	last  map[wire.Type][]byte
	from  map[netip.Addr]map[wire.Type][]byte // the last ones of each host
}

// filter is an underlaytest.Filter that counts, and delivers.
func (m *messages) filter(from, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.count == nil {
		m.count, m.last = map[netip.Addr]map[wire.Type]int{}, map[wire.Type][]byte{}
		m.from = map[netip.Addr]map[wire.Type][]byte{}
	}
	kind, _ := wire.Classify(datagram)
	if m.count[from.Addr()] == nil {
		m.count[from.Addr()] = map[wire.Type]int{}
		m.from[from.Addr()] = map[wire.Type][]byte{}
	}
	m.count[from.Addr()][kind]++
	m.last[kind] = bytes.Clone(datagram)
	m.from[from.Addr()][kind] = m.last[kind]
	return underlaytest.Deliver
}

// sent is how many messages of a type host n has sent.
func (m *messages) sent(n byte, kind wire.Type) int {
	v4, v6 := devicetest.Addresses(n)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count[v4][kind] + m.count[v6][kind]
}

// latest is the last message of a type, or nil.
func (m *messages) latest(kind wire.Type) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.last[kind])
}

// latestFrom is the last message of a type that was sent from an address, or nil. The caller asks the host for its address before: that takes
// the locks of the host's peers, and a worker has one of them while it waits for filter.
func (m *messages) latestFrom(addr netip.Addr, kind wire.Type) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.from[addr][kind])
}

// hasMAC2 tells whether a handshake message bears a cookie's MAC.
func hasMAC2(msg []byte) bool {
	macs, reason := wire.SplitMACs(msg)
	return reason == drop.None && *macs.MAC2 != [wire.MACLen]byte{}
}

// stranger is a host on a LAN that sends handshake messages with any key.
type stranger struct {
	t    testing.TB
	port *underlaytest.Fake
	key  noise.PrivateKey
	id   *noise.Identity
	rx   []underlay.Datagrams
}

func newStranger(t testing.TB, lan devicetest.LAN, n byte) *stranger {
	v4, v6 := devicetest.Addresses(n)
	port, err := lan.Open(v4, v6, devicetest.ListenPort, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = port.Close() })
	s := &stranger{t: t, port: port, rx: []underlay.Datagrams{{Buf: make([]byte, 65535)}}}
	if s.key, err = noise.NewPrivateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	if s.id, err = noise.NewIdentity(s.key); err != nil {
		t.Fatal(err)
	}
	return s
}

// initiation returns a valid initiation to a host, with a timestamp of its own choice.
func (s *stranger) initiation(to *devicetest.Host, at noise.Timestamp) []byte {
	return s.initiationTo(to.Public(), 1234, at)
}

// initiationTo returns a valid initiation with a sender index of choice.
func (s *stranger) initiationTo(key noise.PublicKey, sender uint32, at noise.Timestamp) []byte {
	remote, err := noise.NewRemote(s.id, key)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	var msg wire.Initiation
	if err := noise.NewInitiator(remote).CreateInitiation(&msg, sender, at, rand.Reader); err != nil {
		s.t.Error(err)
	}
	if err := noise.NewCookieJar(remote).AddMACs(msg[:], 0); err != nil {
		s.t.Error(err)
	}
	return msg[:]
}

// send sends anything to a host.
func (s *stranger) send(to *devicetest.Host, datagram []byte) {
	if err := s.port.SendTo(&underlay.Endpoint{Dst: to.Outside(false)}, datagram); err != nil {
		s.t.Error(err)
	}
}

// receive returns the next datagram that the stranger gets.
func (s *stranger) receive() []byte {
	n, err := s.port.Lane(0).Recv(s.rx)
	if err != nil || n != 1 {
		s.t.Errorf("receiving: %d, %v", n, err)
		return nil
	}
	return s.rx[0].Buf[:s.rx[0].N]
}

// asPeer returns the peer configuration for the stranger.
func (s *stranger) asPeer() config.Peer {
	return config.Peer{
		PublicKey:  s.key.Public(),
		AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("10.77.0.0/16")}},
	}
}

// at returns the n-th of a row of ever later timestamps.
func at(n int) (t noise.Timestamp) {
	binary.BigEndian.PutUint64(t[:], uint64(1<<62+n+1))
	return t
}
