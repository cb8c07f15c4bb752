// SPDX-License-Identifier: Apache-2.0

package tunnel_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel"
)

// Two tunnels over an in-memory network, as in a test without root: a packet that the host behind a sends arrives at the host
// behind b.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	network := underlaytest.NewNetwork(nil)
	b, hostB, keyB := memoryTunnel(ctx, network, "192.0.2.2", "2001:db8::2")
	a, hostA, keyA := memoryTunnel(ctx, network, "192.0.2.1", "2001:db8::1")
	defer a.Close()
	defer b.Close()
	addPeer(a, keyB.Public(), "192.0.2.2:51820", "10.0.0.2/32")
	addPeer(b, keyA.Public(), "192.0.2.1:51820", "10.0.0.1/32")

	ping := udpPacket("10.0.0.1", "10.0.0.2", "hello through the tunnel")
	got := exchange(ctx, hostA, hostB, append(make([]byte, offload.VnetHdrLen), ping...))
	fmt.Printf("%s\n", got[offload.VnetHdrLen+28:])
	fmt.Println("handshake done:", !a.Status().Peers[0].LastHandshake.IsZero())
	// Output:
	// hello through the tunnel
	// handshake done: true
}

// memoryTunnel returns a running tunnel at two addresses of network, the host behind its TUN, and its key.
func memoryTunnel(ctx context.Context, network *underlaytest.Network, v4, v6 string) (*tunnel.Tunnel, *tuntest.Fake, noise.PrivateKey) {
	host := tuntest.NewFake(tuntest.FakeConfig{})
	t, err := tunnel.New(tunnel.Config{
		TUN: host,
		OpenPort: func(o tunnel.PortOptions) (underlay.Port, error) {
			return network.Open(netip.MustParseAddr(v4), netip.MustParseAddr(v6), o.Port, o.Lanes)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	key, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	port := uint16(51820)
	if err := t.Configure(config.Device{PrivateKey: &key, ListenPort: &port}); err != nil {
		log.Fatal(err)
	}
	t.Start(ctx)
	return t, host, key
}

// exchange sends a train until the other host has it: nothing arrives until the other host's port is open.
func exchange(ctx context.Context, from, to *tuntest.Fake, train []byte) []byte {
	for ctx.Err() == nil {
		if err := from.Inject(0, train); err != nil {
			log.Fatal(err)
		}
		attempt, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		got, err := to.Receive(attempt, 0)
		cancel()
		if err == nil {
			return got
		}
	}
	log.Fatal(ctx.Err())
	return nil
}

func addPeer(t *tunnel.Tunnel, key noise.PublicKey, endpoint, allowed string) {
	err := t.Configure(config.Device{Peers: []config.Peer{{
		PublicKey:  key,
		Endpoint:   &config.Endpoint{AddrPort: netip.MustParseAddrPort(endpoint)},
		AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix(allowed)}},
	}}})
	if err != nil {
		log.Fatal(err)
	}
}

// udpPacket returns an IPv4 packet with a UDP datagram (RFC 791, RFC 768; no UDP checksum).
func udpPacket(src, dst, payload string) []byte {
	b := make([]byte, 28, 28+len(payload))
	b[0], b[8], b[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(payload)))
	s, d := netip.MustParseAddr(src).As4(), netip.MustParseAddr(dst).As4()
	copy(b[12:], s[:])
	copy(b[16:], d[:])
	binary.BigEndian.PutUint16(b[10:], packet.Checksum(b[:20]))
	binary.BigEndian.PutUint16(b[20:], 7)
	binary.BigEndian.PutUint16(b[22:], 7)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(payload)))
	return append(b, payload...)
}
