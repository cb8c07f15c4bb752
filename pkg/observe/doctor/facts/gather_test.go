// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts/factstest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// enterNamespace moves the test into a network namespace of its own.
func enterNamespace(t *testing.T) {
	t.Helper()
	factstest.EnterNamespace(t)
	up(t, "lo")
}

func up(t *testing.T, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// cable creates a veth pair with a default route through its first end, uplink, which has two queues.
func cable(t *testing.T) netlink.Link {
	t.Helper()
	v := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "far"}
	v.Name, v.NumRxQueues, v.NumTxQueues, v.MTU = "uplink", 2, 2, 1400
	if err := netlink.LinkAdd(v); err != nil {
		t.Skipf("needs veth links: %v", err)
	}
	up(t, "uplink")
	up(t, "far")
	addr, err := netlink.ParseAddr("198.51.100.2/24")
	if err == nil {
		err = netlink.AddrAdd(v, addr)
	}
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: v.Index, Gw: net.IPv4(198, 51, 100, 1)})
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func gather(t *testing.T, o Options) *Facts {
	t.Helper()
	o.Now = time.Now
	if o.Dir == "" {
		o.Dir = uapi.Dir(t.TempDir())
	}
	f, err := Gather(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

func TestGatherReadsDefaultRouteDevice(t *testing.T) {
	enterNamespace(t)
	cable(t)
	writeFile(t, "/sys/class/net/uplink/queues/rx-1/rps_cpus", "1")
	writeFile(t, "/proc/sys/net/ipv4/conf/uplink/rp_filter", "1")
	f := gather(t, Options{Pre: true, Port: 51820})
	if len(f.NICs) != 1 {
		t.Fatalf("got %d devices, want 1", len(f.NICs))
	}
	n := f.NICs[0]
	if n.Name != "uplink" || n.MTU != 1400 || !n.Virtual || n.Driver.Value != "veth" || n.Why != "default route" {
		t.Errorf("got %+v", n)
	}
	if n.Features.Err != nil || len(n.Features.Value) < 20 || n.Features.Value["rx-gro-list"].On {
		t.Errorf("features %+v", n.Features)
	}
	if n.RPS.Err != nil || len(n.RPS.Value) != 2 || len(n.RPS.Value["rx-1"]) != 1 || len(n.RPS.Value["rx-0"]) != 0 {
		t.Errorf("got rps %+v, want Err nil, len(Value) 2, len(Value[\"rx-1\"]) 1, len(Value[\"rx-0\"]) 0", n.RPS)
	}
	if !errors.Is(n.RSS.Err, hostnet.ErrNoRSS) {
		t.Errorf("got rss %+v, want Err %v", n.RSS, hostnet.ErrNoRSS)
	}
	if got := f.Sysctls[RPFilter("uplink")]; got.Value != "1" || got.Err != nil {
		t.Errorf("got rp_filter %+v, want Value \"1\", Err nil", got)
	}
	if n.Above != "" || n.NoXDP != "" {
		t.Errorf("got above %q, an obstacle to AF_XDP %q, want none of a veth", n.Above, n.NoXDP)
	}
	if n.XDP.Value.Attached {
		t.Errorf("XDP program: got %+v, want none attached", n.XDP)
	}
}

func TestGatherReadsLowerDevicesOfBridge(t *testing.T) {
	enterNamespace(t)
	uplink := cable(t)
	br := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	br.Name = "br0"
	if err := netlink.LinkAdd(br); err != nil {
		t.Skipf("needs bridges: %v", err)
	}
	if err := netlink.LinkSetMaster(uplink, br); err != nil {
		t.Fatal(err)
	}
	f := gather(t, Options{Pre: true, Devices: []string{"br0"}})
	if len(f.NICs) != 1 || f.NICs[0].Name != "uplink" || !strings.Contains(f.NICs[0].Why, "below br0") || f.NICs[0].Above != "br0" {
		t.Errorf("got %+v, want length 1", f.NICs)
	}
	if got := f.Sysctls[RPFilter("br0")]; !slices.Equal(f.Underlay, []string{"br0"}) || got.Value == "" || got.Err != nil {
		t.Errorf("got underlay %v, rp_filter of br0 %+v, want br0, and a value", f.Underlay, got)
	}
}

func TestGatherReportsForeignXDPProgram(t *testing.T) {
	enterNamespace(t)
	uplink := cable(t)
	_ = rlimit.RemoveMemlock()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "others", Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Skipf("needs eBPF: %v", err)
	}
	defer p.Close()
	const generic = 1 << 1 // XDP_FLAGS_SKB_MODE
	if err := netlink.LinkSetXdpFdWithFlags(uplink, p.FD(), generic); err != nil {
		t.Fatal(err)
	}
	f := gather(t, Options{Pre: true})
	if x := f.NICs[0].XDP.Value; !x.Attached || !x.Generic || x.Name != "others" || x.ID == 0 {
		t.Errorf("got %+v, want Attached true, Generic true, Name \"others\", ID other than 0", x)
	}
}

func TestGatherFindsOwnerOfPort(t *testing.T) {
	enterNamespace(t)
	if _, err := sockets(); err != nil {
		t.Skip("needs a kernel with udp_diag (CONFIG_INET_UDP_DIAG):", err)
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		c, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Log(err) // without IPv6
			continue
		}
		addr := netip.MustParseAddrPort(c.LocalAddr().String())
		f := gather(t, Options{Pre: true, Port: addr.Port()})
		if s := f.Sockets.Value; f.Sockets.Err != nil || len(s) != 1 || s[0].PID != os.Getpid() || s[0].Addr != addr {
			t.Errorf("got %+v, want a socket at %s", f.Sockets, addr)
		}
		c.Close()
	}
}

func TestKernelProbesReturnResults(t *testing.T) {
	enterNamespace(t)
	k := gather(t, Options{Pre: true}).Kernel
	if k.Release == "" || k.UDP.Err != nil || !k.UDP.Value.GSO {
		t.Errorf("got %+v, want text in Release, UDP.Err nil, UDP.Value.GSO true", k)
	}
	if k.TUNDevice == nil && (k.TUN.Err != nil || !k.TUN.Value.TSO) {
		t.Errorf("TUN: %+v", k.TUN)
	}
	links, err := hostnet.Links()
	if err != nil || len(links) != 1 {
		t.Errorf("probing left links: got %v, error %v, want length 1, no error", links, err)
	}
}

func TestProbingLeavesNoDescriptors(t *testing.T) {
	enterNamespace(t)
	gather(t, Options{Pre: true}) // opens the descriptors that runtime and libraries keep
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	before := count()
	for range 3 {
		gather(t, Options{Pre: true})
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestGatherReadsDaemonStats(t *testing.T) {
	enterNamespace(t)
	uplink := cable(t)
	dir := uapitest.NewDir(t)
	var dev uapitest.Device
	dev.SetStatus(config.Status{
		ListenPort: 51999, FwMark: 7, PrivateKey: noise.PrivateKey{1},
		Peers: []config.PeerStatus{{PublicKey: noise.PublicKey{2}, Endpoint: config.Endpoint{AddrPort: netip.MustParseAddrPort("203.0.113.9:1")}}},
	})
	dev.SetStats(map[string]any{"up": true, "tun": map[string]bool{"TSO": true}, "selection": map[string]any{"reason": "why not"}})
	uapitest.Serve(t, dir, uplink.Attrs().Name, &dev)
	f := gather(t, Options{Dir: dir})
	if len(f.Tunnels) != 1 {
		t.Fatalf("got %d tunnels, want 1", len(f.Tunnels))
	}
	u := f.Tunnels[0]
	if u.Kind != Ropewalk || u.Port != 51999 || u.Mark != 7 || u.MTU != 1400 || u.Stats.Err != nil {
		t.Errorf("got %+v", u)
	}
	if s := u.Stats.Value; !s.Up || !s.TUN.TSO || s.Selection.Reason != "why not" {
		t.Errorf("got %+v, want Up true, TUN.TSO true, Selection.Reason \"why not\"", s)
	}
	if len(u.Peers) != 1 || u.Peers[0].PathMTU.Value != 1400 || u.Peers[0].PathMTU.Err != nil {
		t.Errorf("got %+v, want length 1", u.Peers)
	}
	if len(f.NICs) != 0 { // the only route goes into the tunnel itself
		t.Errorf("got %+v, want length 0", f.NICs)
	}
}

func TestGatherTimesOutOnHungDaemon(t *testing.T) {
	dir := uapi.Dir(t.TempDir())
	l, err := net.Listen("unix", string(dir)+"/rw0.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	u := Tunnel{Name: "rw0"}
	u.readDaemon(ctx, dir)
	if u.Stats.Err == nil {
		t.Errorf("got %+v, want Stats.Err non-nil", u)
	}
}

func TestGatherFailsForUnknownNames(t *testing.T) {
	enterNamespace(t)
	o := Options{Tunnels: []string{"nope"}, Dir: uapi.Dir(t.TempDir()), Now: time.Now}
	if _, err := Gather(t.Context(), o); !errors.Is(err, ErrNoTunnel) {
		t.Error(err)
	}
	o.Tunnels, o.Devices = nil, []string{"nope"}
	if _, err := Gather(t.Context(), o); !errors.Is(err, hostnet.ErrNoLink) {
		t.Error(err)
	}
}

func TestGatherSucceedsOnEmptyHost(t *testing.T) {
	enterNamespace(t)
	f := gather(t, Options{Pre: true, Root: os.DirFS(t.TempDir())})
	if f.Sysctls[BPFJIT].Err == nil || f.CPU.Online.Err == nil {
		t.Errorf("got %+v, want Sysctls[BPFJIT].Err non-nil, CPU.Online.Err non-nil", f)
	}
}

// TestPathMTUIsThatOfMarkedPackets has a route for the tunnel's mark, by which its messages leave.
func TestPathMTUIsThatOfMarkedPackets(t *testing.T) {
	enterNamespace(t)
	uplink := cable(t)
	const mark, table = 7, 100
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: net.IPv4(198, 51, 100, 1), MTU: 1300, Table: table}); err != nil {
		t.Fatal(err)
	}
	rule := netlink.NewRule()
	rule.Family, rule.Mark, rule.Table = netlink.FAMILY_V4, mark, table
	if err := netlink.RuleAdd(rule); err != nil {
		t.Fatal(err)
	}
	for fwMark, want := range map[uint32]int{0: 1400, mark: 1300} {
		var tunnel Tunnel
		tunnel.setStatus(config.Status{FwMark: fwMark, Peers: []config.PeerStatus{{Endpoint: config.Endpoint{AddrPort: netip.MustParseAddrPort("203.0.113.1:51820")}}}})
		if got := tunnel.Peers[0].PathMTU; got.Err != nil || got.Value != want {
			t.Errorf("mark %d: got %+v, want %d", fwMark, got, want)
		}
	}
}
