// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestAttachRejectsInvalidConfig checks that each error says how to fix it, and that no pins are left.
func TestAttachRejectsInvalidConfig(t *testing.T) {
	r := newRig(t)
	other := Tunnel{Name: "wg7", Port: 61500}
	elsewhere := Tunnel{Name: "wg1", Port: 51821}
	for _, tt := range []struct {
		name    string
		change  func(*Config)
		tunnels []Tunnel
		want    string
		is      error
	}{
		{"no such device", func(c *Config) { c.Device = "eth9" }, nil, "no such device: eth9", ErrNoDevice},
		{"loopback", func(c *Config) { c.Device = "lo" }, nil, "lo is the loopback device", nil},
		{"no port", func(c *Config) { c.Port = 0 }, nil, "name it with --port", ErrInvalid},
		{"no tunnels", nil, []Tunnel{}, "no tunnel listens on UDP port 51820 (there are no tunnels in this network namespace)", ErrNoTunnel},
		{"another's port", nil, []Tunnel{elsewhere, other}, "no tunnel listens on UDP port 51820 (there are wg1 on 51821, wg7 on 61500)", ErrNoTunnel},
		{
			"listen port in the range", func(c *Config) { c.Ports = spread.Ports{First: 51800, Last: 51900} }, nil,
			"the ports 51800-51900 contain the tunnel's listen port 51820", ErrInvalid,
		},
		{"another tunnel in the range", nil, []Tunnel{wg(), other}, "the ports 61000-61999 contain the listen port 61500 of wg7", nil},
		{
			"ephemeral ports", func(c *Config) { c.Ports = spread.Ports{First: 60900, Last: 61100} }, nil,
			"sysctl -w net.ipv4.ip_local_reserved_ports=60900-60999", nil,
		},
		{"a plan with an ephemeral port", func(c *Config) { c.PortPlan = []uint16{61000, 60999} }, nil, "the ports 61000,60999 overlap the ephemeral", nil},
		{"a plan with the listen port", func(c *Config) { c.PortPlan = []uint16{51820, 61000} }, nil, "the ports 51820,61000 contain the tunnel's", ErrInvalid},
		{"a plan with another tunnel", func(c *Config) { c.PortPlan = []uint16{61499, 61500} }, []Tunnel{wg(), other}, "contain the listen port 61500 of wg7", nil},
		{"a plan with no port", func(c *Config) { c.PortPlan = []uint16{61499, 0} }, nil, "61499,0 include privileged ones", ErrInvalid},
		{"privileged ports", func(c *Config) { c.Ports = spread.Ports{First: 1000, Last: 1100} }, nil, "include privileged ones (below 1024)", ErrInvalid},
		{"no range", func(c *Config) { c.Ports = spread.Ports{First: 62000, Last: 61000} }, nil, "the ports 62000-61000 are an empty range", ErrInvalid},
		{
			"more lanes than ports", func(c *Config) { c.Lanes, c.Ports = 9, spread.Ports{First: 61000, Last: 61007} }, nil,
			"9 lanes need 9 ports, but 61000-61007 has only 8", ErrInvalid,
		},
		{"too many lanes", func(c *Config) { c.Lanes = 65 }, nil, "65 lanes: want 1 to 64", ErrInvalid},
		{"no such gathering", func(c *Config) { c.Gather = "dpdk" }, nil, `invalid gather mode "dpdk"`, ErrInvalid},
		{"no such gap", func(c *Config) { c.Gap = -1 }, nil, "want 1ms to 1m", ErrInvalid},
		{"a plan with a port twice", func(c *Config) { c.PortPlan = []uint16{61000, 61001, 61000} }, nil, "61000 occurs twice", ErrInvalid},
		{"a plan and another number", func(c *Config) { c.PortPlan, c.Lanes = []uint16{61000, 61001}, 3 }, nil, "3 lanes, but 2 planned", ErrInvalid},
		{
			"a peer's port in the range", func(c *Config) { c.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:61007")} }, nil,
			"contain the listen port of peer 192.0.2.2:61007", ErrInvalid,
		},
		{"no peer", func(c *Config) { c.Peers = []netip.AddrPort{netip.MustParseAddrPort("[::]:7")} }, nil, ":: is not a valid peer address", ErrInvalid},
	} {
		cfg, tunnels := r.here.config(), tt.tunnels
		if tt.change != nil {
			tt.change(&cfg)
		}
		if tunnels == nil {
			tunnels = []Tunnel{wg("192.0.2.2:51820")}
		}
		r.here.finder.set(tunnels...)
		_, err := r.here.try(cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) || (tt.is != nil && !errors.Is(err, tt.is)) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
		if !errors.Is(tt.is, ErrInvalid) && errors.Is(err, ErrInvalid) {
			t.Errorf("%s: the error wraps ErrInvalid", tt.name)
		}
		r.here.clean()
	}
}

func TestReservedPortsAreAccepted(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	cfg.Ports = spread.Ports{First: 60900, Last: 61100}
	r.here.do(func() error { return writeFile("/proc/sys/net/ipv4/ip_local_reserved_ports", "7000,60900-60999") })
	r.here.attach(cfg)
}

func TestPortErrorNamesOwningProcess(t *testing.T) {
	r := newRig(t)
	r.here.finder.set()
	r.here.socket(port)
	cfg := r.here.config()
	_, err := r.here.try(cfg)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(process %d), not to the kernel's", os.Getpid())) {
		t.Errorf("unexpected error: %v", err)
	}
	cfg.AnySocket = true
	if _, err = r.here.try(cfg); err == nil || !strings.Contains(err.Error(), "name them with --peer") {
		t.Errorf("without peers: got error %v, want an error", err)
	}
	cfg.Peers = []netip.AddrPort{netip.AddrPortFrom(thereAddr, 0)}
	if report := r.here.attach(cfg); report.Tunnel != "?" || len(report.Peers) != 1 {
		t.Errorf("got report %+v, want Tunnel \"?\", len(Peers) 1", report)
	}
}

func TestUserspaceTunnelsNeedAnySocket(t *testing.T) {
	r := newRig(t)
	user := wg("192.0.2.2:51820")
	user.Userspace = true
	r.here.finder.set(user)
	_, err := r.here.try(r.here.config()) // the tunnel's socket is in another namespace
	if want := "that port is configured for " + user.Name + ", which is down"; !errors.Is(err, ErrNoTunnel) || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want %q in it", err, want)
	}
	r.here.socket(port)
	cfg := r.here.config()
	if _, err := r.here.try(cfg); err == nil || !strings.Contains(err.Error(), "not to the kernel's WireGuard") {
		t.Errorf("unexpected error: %v", err)
	}
	cfg.AnySocket = true
	r.here.attach(cfg)
}

// TestKernelSocketWithoutDeviceNeedsPeers has a WireGuard device that was moved into a container.
func TestKernelSocketWithoutDeviceNeedsPeers(t *testing.T) {
	r := newRig(t)
	r.here.finder.set()
	r.here.host.udpOwners = map[uint16]udpOwner{port: {inode: ^uint64(0)}}
	cfg := r.here.config()
	if _, err := r.here.try(cfg); err == nil || !strings.Contains(err.Error(), "was moved to another") {
		t.Errorf("unexpected error: %v", err)
	}
	cfg.Peers = []netip.AddrPort{netip.AddrPortFrom(thereAddr, 0)}
	r.here.attach(cfg)
}

func TestTunnelThatIsDownCausesWarning(t *testing.T) {
	r := newRig(t)
	r.here.host.udpOwners = map[uint16]udpOwner{}
	report := r.here.attach(r.here.config())
	if len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], "wg0 has no socket on port 51820") {
		t.Errorf("unexpected warnings: %q", report.Warnings)
	}
}

func TestKernelWithReceiveStallCausesWarning(t *testing.T) {
	r := newRig(t)
	tunnel := wg(netip.AddrPortFrom(thereAddr, port).String())
	tunnel.StallFixed = "6.6.127"
	r.here.finder.set(tunnel)
	report := r.here.attach(r.here.config())
	if !slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.Contains(w, "CVE-2026-52945") && strings.Contains(w, "6.6.127") }) {
		t.Errorf("unexpected warnings: %q", report.Warnings)
	}
}

func TestForeignXDPProgramIsReportedAndKept(t *testing.T) {
	r := newRig(t)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	expect.NoError(r, err)
	defer p.Close()
	var held link.Link
	r.here.do(func() error {
		l, err := netlink.LinkByName(r.here.device)
		if err == nil {
			held, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
		}
		return err
	})
	defer held.Close()
	cfg := r.here.config()
	cfg.Gather = GatherXDP
	_, err = r.here.try(cfg)
	busy, ok := errors.AsType[*hook.BusyError](err)
	if !ok || busy.Name != "foreign" || !strings.Contains(err.Error(), "(foreign) is already attached to the xdp hook; to gather with tc instead") {
		t.Errorf("unexpected error: %v", err)
	}
	r.here.clean()
	r.here.attach(r.here.config()) // tc is free
	if _, err = r.here.try(cfg); err == nil {
		t.Error("second attach succeeded")
	}
	if st := r.here.status(); st.Gather.State != "attached" || st.Gather.Kind == "xdp" || len(st.Problems) > 0 {
		t.Errorf("got status %+v, want Gather.State \"attached\", Gather.Kind other than \"xdp\", no Problems", st)
	}
}

func TestPeersWithoutAUsableEndpointAreSkipped(t *testing.T) {
	r := newRig(t)
	r.here.finder.set(wg("192.0.2.2:51820", "", "198.51.100.1:7", "198.51.100.1:8", "[2001:db8::1]:51821"))
	report := r.here.attach(r.here.config())
	if got := fmt.Sprint(report.Peers); got != "[192.0.2.2:51820 [2001:db8::1]:51821]" {
		t.Errorf("got %s, want %q", got, "[192.0.2.2:51820 [2001:db8::1]:51821]")
	}
	if len(report.Skipped) != 3 || report.Skipped[0] != (SkippedPeer{"b", "it has no endpoint yet"}) ||
		!strings.Contains(report.Skipped[2].Reason, "belongs to a NAT") {
		t.Errorf("unexpected skipped peers: %+v", report.Skipped)
	}
}

// TestPeersWithInvalidEndpointsLeaveOthersSpread has peers that send from port 0, or with a forged address. WireGuard takes it for their endpoint.
func TestPeersWithInvalidEndpointsLeaveOthersSpread(t *testing.T) {
	r := newRig(t)
	hostile := []string{"192.0.2.9:0", "192.0.2.1:51820", "0.0.0.0:7", "224.0.0.1:7", "[ff02::1]:7", "127.0.0.1:7", "255.255.255.255:7"}
	want := "[192.0.2.2:51820 192.0.2.20:51820]"
	first := wg("192.0.2.2:51820")
	r.here.finder.set(first)
	r.here.attach(r.here.config())
	r.here.finder.set(wg(slices.Concat(hostile, []string{"192.0.2.2:51820", "192.0.2.20:51820"})...))
	report := r.here.attach(r.here.config())
	st := r.here.status()
	if fmt.Sprint(report.Peers) != want || len(report.Skipped) != len(hostile) {
		t.Errorf("got report %+v, want peers %s, and %d skipped", report, want, len(hostile))
	}
	if skipped := st.Tunnels[0].Skipped; !slices.Equal(skipped, report.Skipped) || len(st.Problems) > 0 || len(st.Tunnels[0].Peers) != 2 {
		t.Errorf("got skipped peers %v and problems %q, want %v and none", skipped, st.Problems, report.Skipped)
	}
}

// TestProvedPeerKeepsSharedAddress has a peer that sends with another one's forged address, or from behind its NAT.
func TestProvedPeerKeepsSharedAddress(t *testing.T) {
	for name, configured := range map[string][]netip.AddrPort{"peers of the tunnel": nil, "named peers": {netip.AddrPortFrom(thereAddr, port)}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			cfg := r.here.config()
			cfg.Peers = configured
			r.here.attach(cfg)
			senders, receiver := r.senders(), r.there.socket(port)
			r.prove(senders, receiver)
			shared := wg("192.0.2.2:4444", "192.0.2.2:51820") // secretsWith has the address, so keys differ only if these do
			shared.Peers[0].Secrets = secretsWith(hereAddr)
			r.here.finder.set(shared)
			report := r.here.attach(cfg)
			for flow, ports := range r.sources(senders, receiver) {
				if ports[port] {
					t.Errorf("flow %d left from the listen port", flow)
				}
			}
			st := r.here.status()
			if peers := st.Tunnels[0].Peers; len(peers) != 1 || peers[0].PublicKey != "b" || peers[0].Gather == (spread.Ports{}).String() || len(st.Problems) > 0 {
				t.Errorf("got peers %+v and problems %q, want the proved one, gathered from, and none", peers, st.Problems)
			}
			want := []SkippedPeer{{"a", "peer b has answered probes from the same address 192.0.2.2"}}
			if configured == nil && !slices.Equal(report.Skipped, want) || !slices.Equal(st.Tunnels[0].Skipped, want) {
				t.Errorf("got skipped peers %v, in the status %v, want %v", report.Skipped, st.Tunnels[0].Skipped, want)
			}
			r.here.detach(0)
			if report = r.here.attach(r.here.config()); len(report.Peers) != 0 || len(report.Skipped) != 2 {
				t.Errorf("without a proof: got report %+v, want both skipped", report)
			}
		})
	}
}

// TestProofOutlivesChangesOfPeer has a peer that only claims the address of another one, which has answered probes there. The other one's entry in the
// maps is made anew when it comes back to the address, or has another port or other keys.
func TestProofOutlivesChangesOfPeer(t *testing.T) {
	r := newRig(t)
	known := history{endpointPorts: map[string]uint16{}, sharedPorts: new(sharedPorts), probeKeys: probeKeys{}, proofs: proofs{}}
	reconcile := func(a, b string, private byte) (found reconcileResult) {
		t.Helper()
		tunnel := wg(a, b)
		tunnel.Peers[0].Secrets.private[1] += private
		tunnel.Peers[1].Secrets = secretsWith(hereAddr)
		r.here.finder.set(tunnel)
		r.here.do(func() (err error) {
			found, err = r.here.host.reconcile(r.Context(), r.here.config(), known)
			return err
		})
		return found
	}
	reconcile("192.0.2.2:51820", "192.0.2.3:7", 0)
	senders, receiver := r.senders(), r.there.socket(port)
	r.prove(senders, receiver)
	want := []SkippedPeer{{"b", "peer a has answered probes from the same address 192.0.2.2"}}
	for _, step := range []struct {
		name, a string
		private byte
	}{
		{"as before", "192.0.2.2:51820", 0},
		{"another port", "192.0.2.2:4444", 0},
		{"the port of the other peer", "192.0.2.2:7", 0},
		{"elsewhere", "192.0.2.4:51820", 0},
		{"back", "192.0.2.2:51820", 0},
		{"other keys", "192.0.2.2:51820", 1},
	} {
		for range 2 {
			found := reconcile(step.a, "192.0.2.2:7", step.private)
			skipped := r.here.status().Tunnels[0].Skipped
			if step.name == "elsewhere" {
				continue
			}
			if !slices.Equal(found.report.Skipped, want) || !slices.Equal(skipped, want) {
				t.Errorf("%s: got skipped peers %v, in the status %v, want %v", step.name, found.report.Skipped, skipped, want)
			}
		}
	}
}

func TestLaterProofTakesAddress(t *testing.T) {
	tunnel, known := wg("192.0.2.2:7", "192.0.2.2:51820"), proofs{}
	tunnel.Peers[0].Secrets = secretsWith(hereAddr)
	address := thereAddr
	for _, step := range []struct {
		proved int // a peer in the maps, -1 for none
		want   *TunnelPeer
	}{
		{-1, nil},
		{0, &tunnel.Peers[0]},
		{-1, &tunnel.Peers[0]},
		{1, &tunnel.Peers[1]},
		{-1, &tunnel.Peers[1]},
	} {
		var present []programs.Peer
		for i, p := range tunnel.Peers {
			present = append(present, programs.Peer{Endpoint: p.Endpoint, ProbeKeys: p.Secrets.keys(), Proved: i == step.proved})
		}
		if got := tunnel.peersByAddress(present, nil, known)[address]; got != step.want {
			t.Errorf("%+v: got %+v", step, got)
		}
	}
	for i := range maxProofs {
		known[netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})] = "a"
	}
	if tunnel.peersByAddress(nil, nil, known); len(known) != 1 || known[address] != "b" {
		t.Errorf("%d proofs are left, want that of the address in use", len(known))
	}
}

// TestRefusedPeerIsWarnedOf has two peers at one address, of which the maps can hold one.
func TestRefusedPeerIsWarnedOf(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	cfg.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:51820"), netip.MustParseAddrPort("192.0.2.2:51821"), netip.MustParseAddrPort("192.0.2.3:51820")}
	for range 2 {
		report := r.here.attach(cfg)
		if got := fmt.Sprint(report.Peers); got != "[192.0.2.2:51820 192.0.2.3:51820]" || !strings.Contains(fmt.Sprint(report.Warnings), "the peer at 192.0.2.2:51821 is neither") {
			t.Errorf("got peers %s and warnings %q, want all but the second", got, report.Warnings)
		}
	}
}

// TestPeerHeardFromLanePortKeepsListenPort has a peer that spreads before this end gathers, or whose NAT has chosen such a port.
func TestPeerHeardFromLanePortKeepsListenPort(t *testing.T) {
	r := newRig(t)
	r.here.finder.set(wg("192.0.2.2:61007"))
	report, st := r.here.attach(r.here.config()), r.here.status().Tunnels[0]
	if len(report.Peers) != 0 || len(report.Skipped) != 1 || !strings.Contains(report.Skipped[0].Reason, "its endpoint is 192.0.2.2:61007") ||
		!slices.Equal(st.Skipped, report.Skipped) || len(st.Peers) != 0 {
		t.Errorf("its listen port is unknown: got report %+v, status %+v, want it skipped", report, st)
	}
	r.here.finder.set(wg("192.0.2.2:7777"))
	r.here.attach(r.here.config())
	r.here.finder.set(wg("192.0.2.2:61007"))
	report, st = r.here.attach(r.here.config()), r.here.status().Tunnels[0]
	if len(report.Peers) != 1 || report.Peers[0].Port() != 7777 || len(report.Skipped) != 0 || len(st.Skipped) != 0 {
		t.Errorf("the maps have its listen port: got report %+v, status %+v, want that", report, st)
	}
	if got := st.Peers[0].Endpoint.String(); got != "192.0.2.2:61007" {
		t.Errorf("got the endpoint %s in the status, want WireGuard's", got)
	}
}

func TestPlannedPortsKeepTheirOrder(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	cfg.PortPlan = []uint16{61040, 61003, 61017}
	report := r.here.attach(cfg)
	st := r.here.status()
	if fmt.Sprint(report.Lanes) != "[61040 61003 61017]" || st.Tunnels[0].Ports != "61003-61040" ||
		st.Tunnels[0].Peers[0].Gather != spread.DefaultPorts.String() || st.Tunnels[0].Peers[0].Lanes[0].Port != 61040 {
		t.Errorf("got %+v, %+v", report, st.Tunnels)
	}
}

// TestTunnelsMayInterleavePlannedPorts: a plan uses exactly its ports. Ports between them remain available to other tunnels,
// as listen ports, and as ephemeral ports.
func TestTunnelsMayInterleavePlannedPorts(t *testing.T) {
	r := newRig(t)
	second := wg("192.0.2.2:61500")
	second.Name, second.Port = "wg1", 61500
	r.here.finder.set(wg("192.0.2.2:51820"), second)
	a, b := r.here.config(), r.here.config()
	a.PortPlan, b.Port, b.PeerPorts = []uint16{61040, 61003, 61999, 32000}, 61500, spread.Ports{First: 61501, Last: 62000}
	r.here.attach(a)
	b.PortPlan = []uint16{61041, 61003}
	if _, err := r.here.try(b); err == nil || !strings.Contains(err.Error(), "planned port 61003 belongs to the tunnel on port 51820") {
		t.Errorf("unexpected error: %v", err)
	}
	b.PortPlan = []uint16{61041, 61002, 61004}
	report := r.here.attach(b)
	a.PortPlan = []uint16{61005, 61040, 61001} // one port stays, and keeps its place
	r.here.attach(a)
	b.PortPlan = append(b.PortPlan, 61003) // free since the change above
	r.here.attach(b)
	st := r.here.status()
	var lanes [2][]uint16
	for i, ts := range st.Tunnels {
		for _, l := range ts.Peers[0].Lanes {
			lanes[i] = append(lanes[i], l.Port)
		}
	}
	if fmt.Sprint(lanes) != "[[61040 61005 61001] [61041 61002 61004 61003]]" || len(st.Problems) > 0 || len(report.Lanes) != 3 {
		t.Errorf("got %v, %q, %+v", lanes, st.Problems, report)
	}
}

func TestPortsInUseAreAvoided(t *testing.T) {
	r := newRig(t)
	r.here.socket(61005)
	report := r.here.attach(r.here.config())
	if report.Lanes[0] != 61006 {
		t.Errorf("got %d", report.Lanes)
	}
}
