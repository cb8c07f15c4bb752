// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// healthyPeer is a test of a peer without warnings or failures.
func healthyPeer() *facts.PeerPath {
	at := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	device, to := facts.Known("wg0"), netip.MustParseAddr("10.0.0.2")
	return &facts.PeerPath{
		Interface: "wg0", Key: "AAAA", Own: "BBBB", MTU: 1420, Configured: "vpn.example.org:51820",
		Resolved: facts.Known([]netip.Addr{netip.MustParseAddr("192.0.2.7")}),
		Endpoint: config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.7:51820")},
		Route:    facts.Known(hostnet.Egress{Device: "eth0", Source: netip.MustParseAddr("192.0.2.1")}),
		RouteMTU: facts.Known(1500), PathMTU: config.PathMTU{State: config.PathMTUConfirmed, Bytes: 1480},
		Ping:   facts.Known(time.Millisecond),
		Before: facts.PeerState{At: at, LastHandshake: at.Add(-time.Minute), Probe: config.PeerProbe{Up: true, Session: true, Echoes: true}},
		After: facts.PeerState{
			At: at.Add(time.Second), LastHandshake: at.Add(-time.Minute), Rx: 96, Tx: 96,
			Probe: config.PeerProbe{Up: true, Session: true, Echoes: true, Sent: 2, Answered: 1, RTT: time.Millisecond},
		},
		Inside: []facts.InnerAddress{{Addr: to, Device: device, Ping: facts.Known(time.Millisecond)}},
	}
}

// onPeer returns a fault of a host with a test of a peer.
func onPeer(how func(*facts.PeerPath)) func(*facts.Facts) {
	return func(f *facts.Facts) {
		f.Peer = healthyPeer()
		how(f.Peer)
	}
}

// withoutSession is a peer that does not answer.
func withoutSession(how func(*facts.PeerPath)) func(*facts.Facts) {
	return onPeer(func(p *facts.PeerPath) {
		p.After.Probe = config.PeerProbe{Up: true}
		how(p)
	})
}

// stock is a peer without ropewalk.
func stock(how func(*facts.PeerPath)) func(*facts.Facts) {
	return onPeer(func(p *facts.PeerPath) {
		p.After.Probe.Echoes, p.After.Probe.Answered = false, 0
		how(p)
	})
}

func peerCases() []faultCase {
	nothing := func(*facts.PeerPath) {}
	datagram := func(errno error) func(*facts.PeerPath) {
		return func(p *facts.PeerPath) { p.Datagram = fmt.Errorf("reading: %w", errno) }
	}
	mtu := func(m config.PathMTU) func(*facts.PeerPath) { return func(p *facts.PeerPath) { p.PathMTU = m } }
	refused := func(h config.PeerHandshake) func(*facts.PeerPath) {
		return func(p *facts.PeerPath) { p.After.Probe.Handshake = h }
	}
	noPing := func(p *facts.PeerPath) {
		p.Ping = facts.Unknown[time.Duration](errHidden)
		p.Inside[0].Ping = facts.Unknown[time.Duration](errHidden)
	}
	return []faultCase{
		{"peer-name", onPeer(nothing), OK, "vpn.example.org:51820 has the address 192.0.2.7", ""},
		{"peer-name", onPeer(func(p *facts.PeerPath) { p.Resolved.Value = nil }), OK, "no name of it is known", ""},
		{"peer-name", withoutSession(func(p *facts.PeerPath) { p.Endpoint = config.Endpoint{} }), Failed, "no endpoint is known", "endpoint HOST:PORT"},
		{"peer-name", withoutSession(func(p *facts.PeerPath) { p.Resolved.Err = errHidden }), Failed, "hidden", "resolv.conf"},
		{"peer-name", onPeer(func(p *facts.PeerPath) { p.Resolved.Err = errHidden }), Warning, "hidden", "resolv.conf"},
		{
			"peer-name", onPeer(func(p *facts.PeerPath) { p.Resolved.Value[0] = netip.MustParseAddr("192.0.2.9") }), Warning,
			"has the addresses [192.0.2.9], but the tunnel sends to 192.0.2.7:51820", "ropewalk set wg0 peer AAAA endpoint vpn.example.org:51820",
		},
		{"peer-route", onPeer(nothing), OK, "192.0.2.7 over eth0, from 192.0.2.1", ""},
		{"peer-route", onPeer(func(p *facts.PeerPath) { p.Route.Value.Gateway = netip.MustParseAddr("192.0.2.254") }), OK, "via 192.0.2.254", ""},
		{"peer-route", onPeer(func(p *facts.PeerPath) { p.Route.Value.Device = "wg0" }), Failed, "into the tunnel itself", "FwMark"},
		{
			"peer-route", onPeer(func(p *facts.PeerPath) { p.Route.Err, p.Mark = hostnet.ErrNoRoute, 7 }), Failed,
			"no route", "ip route get 192.0.2.7 mark 0x7",
		},
		{"peer-path-mtu", onPeer(mtu(config.PathMTU{State: config.PathMTUUnreachable})), Warning, "no probe", "firewall"},
		{"peer-path-mtu", onPeer(mtu(config.PathMTU{State: config.PathMTUConfirmed, Bytes: 1400, InnerBytes: 1328})), Warning, "1400", "mtu 1328"},
		{"peer-path-mtu", onPeer(mtu(config.PathMTU{State: config.PathMTUSearching, Bytes: 1300, InnerBytes: 1232})), OK, "probing larger sizes", ""},
		{"peer-path-mtu", withoutSession(mtu(config.PathMTU{})), OK, "the route carries 1500 bytes", ""},
		{"peer-path-mtu", withoutSession(func(p *facts.PeerPath) { p.PathMTU, p.RouteMTU.Value = config.PathMTU{}, 1400 }), Warning, "carries 1400", "mtu 1340"},
		{"peer-path-mtu", withoutSession(func(p *facts.PeerPath) { p.PathMTU, p.RouteMTU.Err = config.PathMTU{}, errHidden }), Unknown, "", ""},
		{"peer-firewall", onPeer(nothing), OK, "passes", ""},
		{"peer-firewall", withoutSession(datagram(syscall.EPERM)), Failed, "does not let UDP out", "nft list ruleset"},
		{"peer-firewall", withoutSession(datagram(syscall.ECONNREFUSED)), Failed, "port unreachable", "ss -ulnp 'sport = :51820'"},
		{"peer-firewall", onPeer(datagram(syscall.ECONNREFUSED)), Warning, "port unreachable", "ss -ulnp"},
		{"peer-firewall", withoutSession(datagram(syscall.EHOSTUNREACH)), Failed, "no route to host", "traceroute"},
		{"peer-firewall", withoutSession(nothing), Warning, "answers ping after 1ms, but UDP to port 51820 gets no answer", "tcpdump"},
		{"peer-firewall", withoutSession(noPing), Warning, "answers neither UDP nor ping", "is the host up?"},
		{"peer-firewall", withoutSession(refused(config.PeerHandshake{Refused: config.RefusedMAC1})), OK, "arrive here", ""},
		{"peer-firewall", withoutSession(func(p *facts.PeerPath) { p.Route.Err = hostnet.ErrNoRoute }), Unknown, "no route", ""},
		{"peer-firewall", withoutSession(func(p *facts.PeerPath) { p.After.Probe.Up = false }), Unknown, "interface is down", ""},
		{"peer-handshake", onPeer(nothing), OK, "1m1s ago", ""},
		{"peer-handshake", onPeer(func(p *facts.PeerPath) { p.After.LastHandshake = p.After.At }), OK, "begun by this test", ""},
		{"peer-handshake", withoutSession(nothing), Failed, "no session after 1s", "public key (BBBB)"},
		{"peer-handshake", withoutSession(func(p *facts.PeerPath) { p.After.Probe.Up = false }), Failed, "is down", "ip link set dev wg0 up"},
		{"peer-handshake", withoutSession(func(p *facts.PeerPath) { p.Endpoint = config.Endpoint{} }), Failed, "no endpoint", "peer-name"},
		{"peer-handshake", withoutSession(refused(config.PeerHandshake{Error: "network is unreachable"})), Failed, "network is unreachable", "peer-route"},
		{"peer-handshake", withoutSession(refused(config.PeerHandshake{Refused: config.RefusedMAC1})), Failed, "another public key than this host's", "must be BBBB"},
		{
			"peer-handshake", withoutSession(refused(config.PeerHandshake{Refused: config.RefusedKey, RefusedKey: "CCCC"})), Failed,
			"public key CCCC, which no peer has", "replace its PublicKey",
		},
		{"peer-handshake", withoutSession(refused(config.PeerHandshake{Refused: config.RefusedResponse})), Failed, "not authentic", "PresharedKey"},
		{"peer-data", onPeer(nothing), OK, "answered a probe after 1ms; 96 bytes sent and 96 received", ""},
		{"peer-data", onPeer(func(p *facts.PeerPath) { p.After.Probe.Answered = 0 }), Failed, "none of 2 probes", "tcpdump"},
		{"peer-data", withoutSession(nothing), Unknown, "no session", ""},
		{"peer-data", stock(nothing), OK, "answered a ping inside the tunnel", ""},
		{"peer-data", stock(noPing), OK, "96 received", ""},
		{
			"peer-data", stock(func(p *facts.PeerPath) { noPing(p); p.After.LastHandshake, p.After.Rx = p.After.At, 92 }), Warning,
			"answers no ping", "AllowedIPs",
		},
		{"peer-addresses", onPeer(nothing), OK, "10.0.0.2 answers ping after 1ms", ""},
		{"peer-addresses", onPeer(func(p *facts.PeerPath) { p.Inside = nil }), OK, "no single address", ""},
		{"peer-addresses", withoutSession(func(p *facts.PeerPath) { p.After.Probe.Up, p.Inside[0].Device.Value = false, "eth0" }), Unknown, "interface is down", ""},
		{"peer-addresses", onPeer(noPing), Warning, "pinging 10.0.0.2", "AllowedIPs"},
		{"peer-addresses", withoutSession(noPing), OK, "go into the tunnel", ""},
		{"peer-addresses", onPeer(func(p *facts.PeerPath) { p.Inside[0].Device.Value = "eth0" }), Failed, "leave over eth0", "ip route add 10.0.0.2/32 dev wg0"},
		{
			"peer-addresses", onPeer(func(p *facts.PeerPath) { p.Inside[0].Device.Err = errors.New("no route to 10.0.0.2") }), Failed,
			"no route to 10.0.0.2", "ip route add 10.0.0.2/32 dev wg0",
		},
	}
}
