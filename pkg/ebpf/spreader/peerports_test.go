// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func TestPeersMayHaveDifferentPortRanges(t *testing.T) {
	a, b := netip.MustParseAddrPort("192.0.2.1:51820"), netip.MustParseAddrPort("192.0.2.2:61500")
	own := spread.Ports{First: 40000, Last: 40099}
	cfg := Config{
		Device: "eth0", Port: 51820, Peers: []netip.AddrPort{a}, GatherOnly: []netip.AddrPort{b},
		PeerPortRanges: map[netip.AddrPort]spread.Ports{b: own}, // otherwise its port would be in PeerPorts
	}
	c, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	pl := plan{cfg: c}
	pl.choosePeers(nil, history{})
	if len(pl.peers) != 2 || pl.peers[0].Gather != spread.DefaultPorts || pl.peers[1].Gather != own {
		t.Errorf("unexpected peers: %+v", pl.peers)
	}
	cfg.PeerPortRanges[a] = spread.Ports{First: 51000, Last: 52000}
	if _, err := cfg.withDefaults(); !errors.Is(err, ErrInvalid) {
		t.Errorf("a range that contains the peer's port: got error %v, want %v", err, ErrInvalid)
	}
	wide := Config{Device: "eth0", Port: 51820, PeerPorts: spread.Ports{First: 60000, Last: 61024}}
	if _, err := wide.withDefaults(); !errors.Is(err, ErrInvalid) {
		t.Errorf("a range of 1,025 ports: got error %v, want %v", err, ErrInvalid)
	}
}

func TestExistingPeersAreUpdatedBeforeNewOnes(t *testing.T) {
	peer := func(last byte, lanes ...uint16) programs.Peer {
		return programs.Peer{Tunnel: port, Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, last}), port), Lanes: lanes}
	}
	present := []programs.Peer{peer(2, 61000), peer(3, 61000)}
	others := changedPeers([]programs.Peer{peer(1, 61000), peer(2, 61000), peer(3, 61001)}, byEndpoint(present))
	if len(others) != 2 || others[0].Endpoint != present[1].Endpoint {
		t.Errorf("got %+v, want length 2", others)
	}
}

func TestPeerConfiguredTwiceIsOnePeer(t *testing.T) {
	a, b := netip.MustParseAddrPort("192.0.2.1:51820"), netip.MustParseAddrPort("192.0.2.2:51820")
	for _, cfg := range []Config{
		{Peers: []netip.AddrPort{b, a, a, b}},
		{GatherOnly: []netip.AddrPort{a, b, a}},
		{Peers: []netip.AddrPort{a, b, a}, GatherOnly: []netip.AddrPort{b, b}},
	} {
		cfg.Device, cfg.Port = "eth0", 51820
		cfg, err := cfg.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		pl := plan{cfg: cfg}
		pl.choosePeers(nil, history{})
		if len(pl.peers) != 2 || pl.peers[0].Endpoint != a || pl.peers[1].Endpoint != b || len(pl.report.Peers)+len(pl.report.GatherOnly) != 2 {
			t.Errorf("%+v: got %+v", cfg, pl)
		}
	}
}
