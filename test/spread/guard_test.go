// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestXDPGuardPassesMasqueradedTunnel has the left side's tunnel behind a gateway that masquerades, and has an AF_XDP tunnel with the same
// listen port. The answers to the left side pass the gateway's XDP program, which knows none of their receiver indices.
func TestXDPGuardPassesMasqueradedTunnel(t *testing.T) {
	l := newLab(t)
	l.connectHosts(false, false)
	l.nft(l.router.Masquerade(toRight, netlab.NATPorts{}))
	peer := l.listenUDP(l.right.host, l.right.outer.Addr())
	gateway := l.startGateway(peer.LocalAddr().(*net.UDPAddr))
	expect.EventuallyNoError(t, "the guard to drop an unknown index of a peer", func() error {
		_, err := peer.WriteToUDPAddrPort(unknownIndex(), gateway.endpoint())
		if got := l.classified(gateway); err == nil && got.Drops["rx_unknown_index"] == 0 {
			err = fmt.Errorf("the XDP program counts %+v", got)
		}
		return err
	})
	l.startBehindNAT()
	before := l.classified(gateway).Events["unknown_index"]
	l.wantEchoes(10)
	if n := l.classified(gateway).Events["unknown_index"] - before; n < 10 {
		t.Errorf("%d of 10 answers arrived with the gateway's listen port", n)
	}
}

// startGateway runs ropewalk over AF_XDP on the router, towards a peer that has no tunnel.
func (l *lab) startGateway(peer *net.UDPAddr) *side {
	l.Helper()
	s := l.newSideOn(l.router, "gateway", "10.78.0.1/24")
	s.outer = netip.MustParsePrefix("203.0.113.1/24")
	l.startDaemon(s, "--underlay", "xdp", "--underlay-device", toRight)
	unknown, err := wgtypes.GenerateKey()
	expect.NoError(l, err)
	listen := port
	expect.NoError(l, s.host.SetUp(s.ifname, 1420, s.inner))
	expect.NoError(l, s.wg(func(c *wgctrl.Client) error {
		return c.ConfigureDevice(s.ifname, wgtypes.Config{
			PrivateKey: &s.key, ListenPort: &listen, Peers: []wgtypes.PeerConfig{{PublicKey: unknown, Endpoint: peer}},
		})
	}))
	return s
}

// unknownIndex returns a data message with a receiver index that no session has.
func unknownIndex() []byte {
	return append([]byte{4, 0, 0, 0}, make([]byte, 124)...)
}

// classified has the counters of the XDP program.
type classified struct {
	Drops  map[string]uint64 `json:"drops"`
	Events map[string]uint64 `json:"events"`
}

// classified returns the counters of a side's XDP program.
func (l *lab) classified(s *side) classified {
	l.Helper()
	out, err := l.run(s, "show", s.ifname, "--lanes", "--json")
	expect.NoError(l, err)
	var list struct {
		Interfaces []struct {
			Path classified `json:"path"`
		} `json:"interfaces"`
	}
	expect.NoError(l, json.Unmarshal([]byte(out), &list))
	if len(list.Interfaces) != 1 {
		l.Fatalf("got %d interfaces, want 1:\n%s", len(list.Interfaces), out)
	}
	return list.Interfaces[0].Path
}

// wantEchoes sends datagrams from left to right, one after the other, and waits for an answer to each.
func (l *lab) wantEchoes(n int) {
	l.Helper()
	server, client := l.listenUDP(l.right.host, l.right.inner.Addr()), l.listenUDP(l.left.host, l.left.inner.Addr())
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := server.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	for i := range n {
		expect.EventuallyNoError(l, fmt.Sprintf("answer %d of %d", i, n), func() error { return askEcho(client, server.LocalAddr(), byte(i)) })
	}
}

// askEcho sends a datagram and reads until its answer, which may be missing: nothing repeats a lost datagram.
func askEcho(c *net.UDPConn, to net.Addr, number byte) error {
	if _, err := c.WriteTo([]byte{number}, to); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil || b[0] == number {
			return err
		}
	}
}

// listenUDP opens a socket that the end of the test closes.
func (l *lab) listenUDP(h *netlab.Host, at netip.Addr) (c *net.UDPConn) {
	l.Helper()
	expect.NoError(l, h.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		return err
	}))
	l.Cleanup(func() { _ = c.Close() })
	return c
}
