// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"cmp"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// probeRig is a rig whose hosts know each other's keys, with a router between them.
type probeRig struct {
	*rig
	router   *netlab.Host
	inward   string // the router's device towards here
	outward  string // towards there
	senders  []*net.UDPConn
	receiver *net.UDPConn
}

func newProbeRig(t *testing.T, gather Gather) *probeRig {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skipf("needs nft(8): %v", err)
	}
	e := &probeRig{rig: newUnpluggedRig(t)}
	e.there.addr = netip.MustParseAddr("198.51.100.2")
	router, err := e.lab.Host("router")
	expect.NoError(t, err)
	expect.NoError(t, router.Forward())
	e.router = router
	e.inward = e.plugInto(e.here, "192.0.2.254/24")
	e.outward = e.plugInto(e.there, "198.51.100.254/24")
	e.exchangeKeys()
	for s, device := range map[*side]string{e.here: e.inward, e.there: e.outward} {
		if gather == GatherXDP {
			e.passXDP(device)
		}
		cfg := s.config()
		cfg.Gather, cfg.Lanes = gather, 16
		s.attach(cfg)
	}
	e.senders = e.rig.senders()
	e.receiver = e.there.socket(port)
	return e
}

// plugInto connects a host with the router, which has that address. It returns the router's device.
func (e *probeRig) plugInto(s *side, router string) string {
	e.Helper()
	gateway := netip.MustParsePrefix(router)
	c, err := e.lab.Cable(s.lab, e.router, netlab.CableConfig{
		Queues: 4, AddrsA: []netip.Prefix{netip.PrefixFrom(s.addr, 24)}, AddrsB: []netip.Prefix{gateway},
	})
	expect.NoError(e, err)
	s.rename(c.DeviceA)
	expect.NoError(e, s.lab.RouteVia(netip.MustParsePrefix("0.0.0.0/0"), gateway.Addr()))
	return c.DeviceB
}

// passXDP attaches an XDP program to a device of the router. Without one at its other end, a veth keeps what is sent by XDP_TX
// (veth_xdp_flush in drivers/net/veth.c).
func (e *probeRig) passXDP(device string) {
	e.Helper()
	expect.NoError(e, e.router.Do(func() error {
		pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
		})
		if err != nil {
			return err
		}
		e.Cleanup(func() { expect.NoError(e, pass.Close()) })
		at, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: at.Index, Flags: link.XDPDriverMode})
		if err != nil {
			return err
		}
		e.Cleanup(func() { expect.NoError(e, l.Close()) })
		return nil
	}))
}

// exchangeKeys gives the tunnels keys, as WireGuard would have them.
func (e *probeRig) exchangeKeys() {
	e.Helper()
	for s, peer := range map[*side]netip.Addr{e.here: e.there.addr, e.there: e.here.addr} {
		t := wg(netip.AddrPortFrom(peer, port).String())
		s.finder.set(t)
	}
}

// TestPeerBehindNATKeepsItsPort: the NAT has given a peer without ropewalk a port in the range of lane ports. WireGuard's answers to another port would be lost.
func TestPeerBehindNATKeepsItsPort(t *testing.T) {
	const mapped = 61500
	r := newRig(t)
	r.there.finder.set(wg(netip.AddrPortFrom(hereAddr, mapped).String()))
	receiver, sender := r.there.socket(port), r.here.socket(mapped)
	r.there.attach(r.there.config())
	for n := range 10 {
		_, err := sender.WriteToUDPAddrPort(message(1, n), netip.AddrPortFrom(thereAddr, port))
		expect.NoError(t, err)
		if a := r.receive(receiver); a.from != netip.AddrPortFrom(hereAddr, mapped) {
			t.Fatalf("message %d came from %v, want port %d", n, a.from, mapped)
		}
	}
}

// TestProbesHaveHashesOfTheirOwn: with that of a message a probe would be in the queue of the message's flow, which its container may fill.
func TestProbesHaveHashesOfTheirOwn(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	counts := r.here.countProbes()
	senders, receiver := r.senders(), r.there.socket(port)
	r.prove(senders, receiver)
	var without, with uint64
	expect.NoError(t, errors.Join(counts.Lookup(uint32(0), &without), counts.Lookup(uint32(1), &with)))
	if without == 0 || with != 0 {
		t.Errorf("%d probes have no hash yet, and %d have that of a message, want some and 0", without, with)
	}
}

// countProbes counts packets with the length of a probe that leave behind the spread program: without a hash at 0, with one at 1.
func (s *side) countProbes() *ebpf.Map {
	s.r.Helper()
	const probeFrame = 14 + 20 + 8 + 40
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	expect.NoError(s.r, err)
	s.r.Cleanup(func() { m.Close() })
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // len
		asm.JNE.Imm(asm.R2, probeFrame, "next"),
		asm.LoadMem(asm.R2, asm.R1, 68, asm.Word), // hash
		asm.Mov.Imm(asm.R3, 0),
		asm.JEq.Imm(asm.R2, 0, "count"),
		asm.Mov.Imm(asm.R3, 1),
		asm.StoreMem(asm.RFP, -4, asm.R3, asm.Word).WithSymbol("count"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "next"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("next"), asm.Return(),
	}})
	expect.NoError(s.r, err)
	s.r.Cleanup(func() { p.Close() })
	s.do(func() error {
		at, err := net.InterfaceByName(s.device)
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: at.Index, Program: p, Attach: ebpf.AttachTCXEgress, Anchor: link.Tail()})
		if errors.Is(err, ebpf.ErrNotSupported) {
			s.r.Skip("needs a kernel with tcx (Linux 6.6)")
		}
		if err == nil {
			s.r.Cleanup(func() { l.Close() })
		}
		return err
	})
	return m
}

func newKey(tb testing.TB) *ecdh.PrivateKey {
	tb.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	expect.NoError(tb, err)
	return key
}

// nft runs nftables commands in the router.
func (e *probeRig) nft(commands string) {
	e.Helper()
	cmd := e.router.Command(context.Background(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		e.Fatalf("nft: %v\n%s", err, out)
	}
}

// arrivals sends messages of each flow, and returns the flows of which the last one arrives.
func (e *probeRig) arrivals() map[int]bool {
	e.Helper()
	const each = 8
	for n := range each {
		for flow, c := range e.senders {
			_, err := c.WriteToUDPAddrPort(message(flow, n), netip.AddrPortFrom(e.there.addr, port))
			expect.NoError(e, err)
		}
	}
	arrived, buf := map[int]bool{}, make([]byte, 2048)
	expect.NoError(e, e.receiver.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	for {
		n, from, err := e.receiver.ReadFromUDPAddrPort(buf)
		if err != nil {
			return arrived
		}
		if n != 96 || from != netip.AddrPortFrom(hereAddr, port) {
			e.Fatalf("received %d bytes from %v, want a data message from port %d", n, from, port)
		}
		if buf[20] == each-1 {
			arrived[int(buf[16])] = true
		}
	}
}

func (e *probeRig) peer() PeerStatus {
	e.Helper()
	return e.here.status().Tunnels[0].Peers[0]
}

// awaitFlows sends until all flows arrive and the peer's status is as wanted.
func (e *probeRig) awaitFlows(what string, want func(PeerStatus) bool) {
	e.Helper()
	expect.EventuallyNoError(e, what, func() error {
		arrived := slices.Sorted(maps.Keys(e.arrivals()))
		if p := e.peer(); len(arrived) != flows || !want(p) {
			return fmt.Errorf("flows %v arrive, status %+v", arrived, p)
		}
		return nil
	})
}

func isSpread(p PeerStatus) bool { return p.Ready && len(p.Blocked) == 0 }

// TestLanesFollowStatefulFirewall has a firewall that admits only replies: none, then one, then none again. The messages take lane ports
// only while it is not there.
func TestLanesFollowStatefulFirewall(t *testing.T) {
	for _, gather := range []Gather{GatherTC, GatherXDP} {
		t.Run(string(gather), func(t *testing.T) { lanesFollowStatefulFirewall(t, newProbeRig(t, gather)) })
	}
}

func lanesFollowStatefulFirewall(t *testing.T, e *probeRig) {
	e.awaitFlows("without a firewall", isSpread)
	expect.NoError(t, e.router.AcceptRepliesOnly(e.inward))
	_, err := e.receiver.WriteToUDPAddrPort(make([]byte, 32), netip.AddrPortFrom(hereAddr, port)) // the connection that is admitted
	expect.NoError(t, err)
	e.awaitFlows("behind the firewall", func(p PeerStatus) bool {
		return p.ProbeAnswered && len(p.Blocked) > 0
	})
	st := e.here.status()
	if len(st.Problems) != 1 || !strings.Contains(st.Problems[0], "firewall") {
		t.Errorf("got problems %q, want one about a firewall", st.Problems)
	}
	e.nft("flush ruleset")
	e.awaitFlows("without the firewall again", isSpread)
	if st := e.here.status(); len(st.Problems) != 0 {
		t.Errorf("got problems %q, want none", st.Problems)
	}
}

// TestOnlyTheDroppedPortIsBlocked has a path that drops what comes from one lane port.
func TestOnlyTheDroppedPortIsBlocked(t *testing.T) {
	e := newProbeRig(t, GatherAuto)
	e.awaitFlows("without a firewall", isSpread)
	var busiest LaneStatus
	expect.Eventually(t, "a lane has a load", func() bool { // which a slow machine may read when it has decayed
		e.arrivals()
		busiest = slices.MaxFunc(e.peer().Lanes, func(a, b LaneStatus) int { return cmp.Compare(a.Load, b.Load) })
		return busiest.Load > 0
	})
	blocked := busiest.Port
	e.nft(fmt.Sprintf("table inet block { chain forward { type filter hook forward priority 0; udp sport %d drop; }; }", blocked))
	e.awaitFlows("with the port blocked", func(p PeerStatus) bool { return slices.Equal(p.Blocked, []uint16{blocked}) })
}

// TestPeerWithoutGatherIsNotSpreadTo: it answers no probe, and drops the few that it gets as WireGuard does.
func TestPeerWithoutGatherIsNotSpreadTo(t *testing.T) {
	e := newProbeRig(t, GatherAuto)
	e.there.detach(0)
	probes, buf := 0, make([]byte, 2048)
	const messages = 100 * flows
	for n := range messages {
		_, err := e.senders[n%flows].WriteToUDPAddrPort(message(n%flows, n), netip.AddrPortFrom(e.there.addr, port))
		expect.NoError(t, err)
		expect.NoError(t, e.receiver.SetReadDeadline(time.Now().Add(20*time.Second)))
		for size := 0; size != 96; {
			var from netip.AddrPort
			size, from, err = e.receiver.ReadFromUDPAddrPort(buf)
			expect.NoError(t, err)
			if size != 96 {
				probes++
			}
			if from.Port() != port {
				t.Fatalf("received %d bytes from port %d, want all from the listen port", size, from.Port())
			}
		}
	}
	if p := e.peer(); p.ProbeAnswered || p.Ready || probes == 0 || probes > messages/50 {
		t.Errorf("got status %+v after %d probes, want no answer to a few", p, probes)
	}
}

// TestProbeKeysFitBothEnds: each end's key for sending is the other's for receiving, and another peer has other keys.
func TestProbeKeysFitBothEnds(t *testing.T) {
	a, b := newKey(t), newKey(t)
	public := func(k *ecdh.PrivateKey) [32]byte { return [32]byte(k.PublicKey().Bytes()) }
	secrets := NewProbeSecrets([32]byte(a.Bytes()), public(b))
	send, receive, ok := secrets.derive()
	theirSend, theirReceive, theyOK := NewProbeSecrets([32]byte(b.Bytes()), public(a)).derive()
	if !ok || !theyOK || send != theirReceive || receive != theirSend || send == receive {
		t.Error("the keys of both ends do not fit")
	}
	here := secrets.keys()
	if NewProbeSecrets([32]byte(a.Bytes()), public(newKey(t))).keys() == here {
		t.Error("another peer has the same keys")
	}
	for name, s := range map[string]ProbeSecrets{
		"no private key":     NewProbeSecrets([32]byte{}, public(b)),
		"low-order public":   NewProbeSecrets([32]byte(a.Bytes()), [32]byte{}),
		"nothing":            {},
		"low-order public 1": NewProbeSecrets([32]byte(a.Bytes()), [32]byte{1}),
	} {
		if s.keys() != (programs.ProbeKeys{}) {
			t.Errorf("%s: got keys, want none", name)
		}
	}
}

// TestRotatedPresharedKeyKeepsProbeKeys: programs set a new preshared key every two minutes, at times of their own.
func TestRotatedPresharedKeyKeepsProbeKeys(t *testing.T) {
	private, peer := wgtypes.Key(newKey(t).Bytes()), wgtypes.Key(newKey(t).PublicKey().Bytes())
	secrets := func(preshared byte) ProbeSecrets {
		d := wgtypes.Device{PrivateKey: private, Peers: []wgtypes.Peer{{PublicKey: peer, PresharedKey: wgtypes.Key{preshared}}}}
		return tunnelOf(&d).Peers[0].Secrets
	}
	if secrets(1) != secrets(2) {
		t.Error("another preshared key changes the keys of probes, so all proofs end")
	}
}

func TestRemovedPeersAreForgotten(t *testing.T) {
	tunnel := wg("192.0.2.2:51820", "192.0.2.3:51820")
	known := history{endpointPorts: map[string]uint16{"a": 1, "b": 2}, probeKeys: probeKeys{}}
	for i := range maxProofs {
		known.endpointPorts[fmt.Sprint(i)] = 3
	}
	tunnel.Peers[1].Secrets = secretsWith(hereAddr)
	for _, p := range tunnel.Peers {
		known.probeKeys.of(p.Secrets)
	}
	tunnel.Peers = tunnel.Peers[:1]
	known.keepPeers(&tunnel)
	if len(known.endpointPorts) != 1 || known.endpointPorts["a"] != 1 || len(known.probeKeys) != 1 {
		t.Errorf("got the ports %v and keys of %d peers, want those of a alone", known.endpointPorts, len(known.probeKeys))
	}
	known.keepPeers(nil)
	if len(known.probeKeys) != 1 {
		t.Error("a tunnel that was not found loses what is known of its peers")
	}
}
