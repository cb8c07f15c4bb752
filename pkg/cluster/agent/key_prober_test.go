// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/expect"
)

// respond answers handshakes of one key as a peer does, while it accepts the key.
func respond(t *testing.T, own noise.PrivateKey, from noise.PublicKey, accepts *atomic.Bool) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	id, err := noise.NewIdentity(own)
	if err != nil {
		t.Fatal(err)
	}
	remote, err := noise.NewRemote(id, from)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		b := make([]byte, 2048)
		for {
			n, at, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			r := noise.NewResponder(id)
			if key, reason := r.ConsumeInitiation(b[:n]); reason != drop.None || key != from || !accepts.Load() {
				continue
			}
			if _, reason := r.Authenticate(remote); reason != drop.None {
				continue
			}
			var msg wire.Response
			if _, err := r.CreateResponse(&msg, 7, &noise.PresharedKey{}, rand.Reader); err == nil {
				_, _ = c.WriteToUDPAddrPort(msg[:], at)
			}
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestProberFindsPeersAcceptingNextKey(t *testing.T) {
	next, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProber(next)
	if err != nil {
		t.Fatal(err)
	}
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	var st config.Status
	var accept [2]atomic.Bool
	for i := range accept {
		own, err := noise.NewPrivateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		at := respond(t, own, next.Public(), &accept[i])
		st.Peers = append(st.Peers, config.PeerStatus{
			PublicKey: own.Public(), LastHandshake: time.Now(), Endpoint: config.Endpoint{AddrPort: at}, AllowedIPs: pods,
		})
	}
	nowhere := config.Endpoint{AddrPort: netip.MustParseAddrPort("127.0.0.1:1")}
	st.Peers = append(st.Peers,
		config.PeerStatus{PublicKey: noise.PublicKey{1}, Endpoint: nowhere, AllowedIPs: pods},                                            // no handshake yet
		config.PeerStatus{PublicKey: noise.PublicKey{2}, LastHandshake: time.Now(), Endpoint: nowhere},                                   // a next key itself
		config.PeerStatus{PublicKey: noise.PublicKey{3}, LastHandshake: time.Now().Add(-time.Hour), Endpoint: nowhere, AllowedIPs: pods}, // its session has ended
	)
	ask := func(want int) {
		t.Helper()
		expect.EventuallyNoError(t, "the peers confirm", func() error {
			n, err := p.countUnconfirmed(st.Peers)
			expect.NoError(t, err)
			if n < want {
				t.Fatalf("got %d unconfirmed peers, want %d", n, want)
			}
			if n > want {
				return fmt.Errorf("%d unconfirmed peers, want %d", n, want)
			}
			return nil
		})
	}
	ask(2)
	accept[0].Store(true)
	ask(1)
	accept[1].Store(true)
	ask(0)
	before := p.lastSentAt
	ask(0)
	if p.lastSentAt != before {
		t.Error("probed a peer that had answered")
	}
}

func TestProberDistinguishesPeersBehindOneAddress(t *testing.T) {
	p, err := newProber(noise.PrivateKey{1})
	if err != nil {
		t.Fatal(err)
	}
	nobody, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	var st config.Status
	for i := range byte(2) {
		st.Peers = append(st.Peers, config.PeerStatus{
			PublicKey: noise.PrivateKey{0, 2 + i}.Public(), LastHandshake: time.Now(),
			Endpoint:   config.Endpoint{AddrPort: nobody.LocalAddr().(*net.UDPAddr).AddrPort()},
			AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		})
	}
	if n, err := p.countUnconfirmed(st.Peers); err != nil || n != 2 {
		t.Errorf("%d do not accept it, want both: %v", n, err)
	}
	for i := range st.Peers { // the settle time counts from the last probe, however many there are
		p.lastSentAt = time.Time{}
		if p.send(nobody, st.Peers[i].Endpoint.AddrPort, st.Peers[i].PublicKey); p.lastSentAt.IsZero() {
			t.Error("the time of the probe was not recorded")
		}
	}
}

func FuzzProbeReply(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 1, 2, 3, 4, 7, 0, 0, 0})
	f.Add(make([]byte, wire.ResponseSize))
	f.Add(append([]byte{3, 0, 0, 0, 7}, make([]byte, 59)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := newProber(noise.PrivateKey{1})
		if err != nil {
			t.Fatal(err)
		}
		p.prepare(&config.PeerStatus{PublicKey: noise.PrivateKey{2}.Public()})
		for _, q := range p.probes {
			p.sent[7] = q
		}
		if p.handleReply(b) {
			t.Error("accepted a response of another key")
		}
	})
}
