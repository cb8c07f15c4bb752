// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// peerChecks are the checks of `ropewalk doctor --peer`, in the order in which a packet meets the
// causes.
func peerChecks() []Check {
	return []Check{
		checkPeer("peer-name", "name from which the endpoint was resolved, against DNS", evaluatePeerName,
			"the tunnel sends to the address that the name had when it was resolved"),
		checkPeer("peer-route", "route to the endpoint", evaluatePeerRoute, "without a route outside the tunnel no message leaves this host"),
		checkPeer("peer-path-mtu", "path MTU to the peer", evaluatePeerMTU,
			"larger inner packets are fragmented or answered with ICMP, and their sender must lower its packet size"),
		checkPeer("peer-firewall", "answer of the endpoint to a datagram and to a ping, from another port", evaluatePeerFirewall,
			"WireGuard answers no stranger: an ICMP error is from a host without a tunnel, or from a firewall"),
		checkPeer("peer-handshake", "session with the peer, or a new handshake", evaluatePeerHandshake,
			"without a handshake there is no session, and packets for the peer are dropped"),
		checkPeer("peer-data", "data in both directions: a probe that the peer answers, or a ping and the counters", evaluatePeerData,
			"a session alone does not show that data arrives"),
		checkPeer("peer-addresses", "route and ping of the peer's addresses inside the tunnel", evaluatePeerAddresses,
			"packets reach the peer only if routes lead into the tunnel and the AllowedIPs on both sides admit them"),
	}
}

func checkPeer(id, description string, evaluate func(*facts.PeerPath, string, *recorder), why string) Check {
	c := check(id, description, func(f *facts.Facts, r *recorder) {
		if f.Peer != nil {
			evaluate(f.Peer, f.Peer.Key, r)
		}
	}, why).needsTunnel()
	c.NeedsPeer = true
	return c
}

// errInterfaceDown is the reason of checks that need the interface up. peer-handshake tells how to bring it up.
var errInterfaceDown = errors.New("the interface is down")

// endpoint is the peer's endpoint as text.
func endpoint(p *facts.PeerPath) string { return p.Endpoint.AddrPort.String() }

func evaluatePeerName(p *facts.PeerPath, key string, r *recorder) {
	set := "ropewalk set " + quote(p.Interface) + " peer " + key + " endpoint "
	status := Failed
	if p.After.Probe.Session {
		status = Warning // it matters at the next start
	}
	switch {
	case !p.Endpoint.AddrPort.IsValid():
		r.add(key, Failed, "no endpoint is known: this host cannot begin, and the peer has sent nothing", set+"HOST:PORT   # or let the peer begin", nil)
	case p.Resolved.Err != nil:
		r.add(key, status, fmt.Sprintf("%s: %v", p.Configured, p.Resolved.Err), "see /etc/resolv.conf, and `getent ahosts` with the name", nil)
	case len(p.Resolved.Value) > 0 && !slices.Contains(p.Resolved.Value, p.Endpoint.AddrPort.Addr().Unmap()):
		r.warn(key, fmt.Sprintf("%s has the addresses %v, but the tunnel sends to %s", p.Configured, p.Resolved.Value, endpoint(p)), set+quote(p.Configured))
	case len(p.Resolved.Value) > 0:
		r.ok(key, "%s has the address %s, to which the tunnel sends", p.Configured, p.Endpoint.AddrPort.Addr())
	default:
		r.ok(key, "the endpoint is %s, no name of it is known", endpoint(p))
	}
}

func evaluatePeerRoute(p *facts.PeerPath, key string, r *recorder) {
	to := p.Endpoint.AddrPort.Addr()
	get := "ip route get " + to.String()
	if p.Mark != 0 {
		get += fmt.Sprintf(" mark %#x", p.Mark)
	}
	switch e := p.Route.Value; {
	case !to.IsValid():
		r.unknown(key, errors.New("there is no endpoint"))
	case p.Route.Err != nil:
		r.fail(key, p.Route.Err.Error(), get)
	case e.Device == p.Interface:
		r.fail(key, fmt.Sprintf("packets to %s go into the tunnel itself", to), "give "+quote(p.Interface)+
			" a FwMark, as `ropewalk up` does for a default route, or add a route to the address outside the tunnel")
	case e.Gateway.IsValid():
		r.ok(key, "%s over %s, via %s, from %s", to, e.Device, e.Gateway, e.Source)
	default:
		r.ok(key, "%s over %s, from %s", to, e.Device, e.Source)
	}
}

func evaluatePeerMTU(p *facts.PeerPath, key string, r *recorder) {
	overhead := overheadIPv4
	if p.Endpoint.AddrPort.Addr().Unmap().Is6() {
		overhead = overheadIPv6
	}
	route := p.RouteMTU.Value
	fix := func(mtu int) string { return fmt.Sprintf("ip link set dev %s mtu %d", quote(p.Interface), mtu) }
	switch known := p.PathMTU.String(); {
	case p.PathMTU.State == config.PathMTUUnreachable:
		r.warn(key, known, "look for a firewall on the path that drops UDP with Don't Fragment")
	case p.PathMTU.State == config.PathMTUSearching:
		r.ok(key, "%s", known)
	case p.PathMTU.InnerBytes > 0:
		r.warn(key, known, fix(p.PathMTU.InnerBytes))
	case known != "":
		r.ok(key, "%s", known)
	case p.RouteMTU.Err != nil || route == 0:
		r.unknown(key, errors.New("there is neither a session nor a route"))
	case route-overhead < p.MTU:
		r.warn(key, fmt.Sprintf("the route carries %d bytes, the tunnel's MTU is %d", route, p.MTU), fix(route-overhead))
	default:
		r.ok(key, "the route carries %d bytes, enough for the tunnel's MTU of %d; no probe was answered yet", route, p.MTU)
	}
}

func evaluatePeerFirewall(p *facts.PeerPath, key string, r *recorder) {
	add := r.fail
	if p.After.Probe.Session {
		add = r.warn // it concerns other ports than the tunnel's
	}
	port, err := p.Endpoint.AddrPort.Port(), p.Datagram
	atPeer := fmt.Sprintf("at the peer: admit UDP to port %d in its firewall, and see with `tcpdump -ni any udp port %d` what arrives", port, port)
	switch {
	case p.Route.Err != nil || !p.Endpoint.AddrPort.IsValid():
		r.unknown(key, errors.New("there is no route"))
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		add(key, fmt.Sprintf("this host does not let UDP out to %s: %v", endpoint(p), errno(err)), "nft list ruleset   # admit the output")
	case errors.Is(err, syscall.ECONNREFUSED):
		add(key, fmt.Sprintf("%s answers with ICMP port unreachable: nothing listens there, or a firewall rejects", endpoint(p)),
			fmt.Sprintf("at the peer: ss -ulnp 'sport = :%d'   # is the tunnel up, and does it listen at this port?", port))
	case err != nil:
		add(key, fmt.Sprintf("a router or a firewall answers for %s: %v", endpoint(p), errno(err)), "traceroute -U -p "+fmt.Sprint(port)+" "+p.Endpoint.AddrPort.Addr().String())
	case p.After.Probe.Handshake.Refused != "":
		r.ok(key, "handshake messages from %s arrive here", endpoint(p))
	case p.After.Probe.Session:
		r.ok(key, "UDP to and from %s passes", endpoint(p))
	case !p.After.Probe.Up:
		r.unknown(key, errInterfaceDown)
	case p.Ping.Err == nil:
		r.warn(key, fmt.Sprintf("%s answers ping after %s, but UDP to port %d gets no answer", p.Endpoint.AddrPort.Addr(), brief(p.Ping.Value), port), atPeer)
	default:
		r.warn(key, fmt.Sprintf("%s answers neither UDP nor ping", p.Endpoint.AddrPort.Addr()), "is this the peer's address, and is the host up? "+atPeer)
	}
}

// errno returns the error of the system call in err.
func errno(err error) error {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}

// brief is a duration with three digits.
func brief(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Second).String()
}

func evaluatePeerHandshake(p *facts.PeerPath, key string, r *recorder) {
	switch probe := &p.After.Probe; {
	case !probe.Up:
		r.fail(key, errInterfaceDown.Error(), "ip link set dev "+quote(p.Interface)+" up")
	case probe.Session && !p.After.LastHandshake.Equal(p.Before.LastHandshake):
		r.ok(key, "complete, begun by this test or during it")
	case probe.Session:
		r.ok(key, "the last one was complete %s ago", brief(p.After.At.Sub(p.After.LastHandshake)))
	case !p.Endpoint.AddrPort.IsValid():
		r.fail(key, "none, and no endpoint to begin one with", "see peer-name")
	case probe.Handshake.Error != "":
		r.fail(key, "the initiation could not be sent: "+probe.Handshake.Error, "see peer-route and peer-firewall")
	default:
		found := fmt.Sprintf("no session after %s", brief(p.After.At.Sub(p.Before.At)))
		if text := probe.Handshake.RefusedText(); text != "" {
			found += "; " + text
		}
		r.fail(key, found, handshakeAdvice(p.Interface, p.Own, probe.Handshake))
	}
}

// handshakeAdvice returns the steps to take for a peer that does not answer.
func handshakeAdvice(name, own string, h config.PeerHandshake) string {
	if own == "" {
		own = "what `ropewalk show " + quote(name) + " public-key` prints"
	}
	switch h.Refused {
	case config.RefusedMAC1:
		return "at the peer: PublicKey of the [Peer] for this host must be " + own
	case config.RefusedKey:
		return "ask the peer for its public key, since anybody can forge that message: if it is " + h.RefusedKey + ", replace its PublicKey here"
	case config.RefusedResponse:
		return "give both sides the same PresharedKey, or none"
	}
	return "at the peer: is its interface up, does it have this host's public key (" + own + "), and does a firewall admit UDP to its listen port? " +
		"Here: is the PublicKey the peer's, and its Endpoint right?"
}

// largestHandshakeMessage is the size of an initiation in bytes.
const largestHandshakeMessage = 148

func evaluatePeerData(p *facts.PeerPath, key string, r *recorder) {
	before, after := &p.Before, &p.After
	rx, tx := after.Rx-before.Rx, after.Tx-before.Tx
	counts := fmt.Sprintf("%d bytes sent and %d received during the test", tx, rx)
	if !after.LastHandshake.Equal(before.LastHandshake) {
		rx -= min(rx, largestHandshakeMessage)
	}
	answered := slices.ContainsFunc(p.Inside, func(a facts.InnerAddress) bool { return a.Ping.Err == nil })
	switch probe := &after.Probe; {
	case !probe.Session:
		r.unknown(key, errors.New("there is no session"))
	case probe.Echoes && probe.Answered > before.Probe.Answered:
		r.ok(key, "both ways: the peer answered a probe after %s; %s", brief(probe.RTT), counts)
	case probe.Echoes:
		r.fail(key, fmt.Sprintf("the peer answered none of %d probes; %s", probe.Sent-before.Probe.Sent, counts),
			"tcpdump -ni any udp port "+fmt.Sprint(p.Endpoint.AddrPort.Port())+"   # on both sides: which direction is lost?")
	case answered:
		r.ok(key, "both ways: the peer answered a ping inside the tunnel; %s", counts)
	case rx > 0:
		r.ok(key, "%s", counts)
	default:
		r.warn(key, counts+"; the peer answers no ping inside the tunnel", "at the peer: its AllowedIPs for this host must hold this host's address in the tunnel")
	}
}

func evaluatePeerAddresses(p *facts.PeerPath, key string, r *recorder) {
	if !p.After.Probe.Up {
		r.unknown(key, errInterfaceDown)
		return
	}
	if len(p.Inside) == 0 {
		r.ok(key, "AllowedIPs has no single address to test")
	}
	for i := range p.Inside {
		a := &p.Inside[i]
		prefix := netip.PrefixFrom(a.Addr, a.Addr.BitLen())
		add := fmt.Sprintf("ip route add %s dev %s   # ropewalk up does so, unless Table = off", prefix, quote(p.Interface))
		switch {
		case a.Device.Err != nil:
			r.fail(key, a.Device.Err.Error(), add)
		case a.Device.Value != p.Interface:
			r.fail(key, fmt.Sprintf("packets to %s leave over %s, not into the tunnel", a.Addr, a.Device.Value), add)
		case !p.After.Probe.Session:
			r.ok(key, "packets to %s go into the tunnel", a.Addr)
		case a.Ping.Err != nil:
			r.warn(key, fmt.Sprintf("pinging %s: %v", a.Addr, errno(a.Ping.Err)),
				"at the peer: does it have this address, do its AllowedIPs for this host hold this host's, and does its firewall admit ICMP?")
		default:
			r.ok(key, "%s answers ping after %s", a.Addr, brief(a.Ping.Value))
		}
	}
}
