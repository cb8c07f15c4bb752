// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// cni describes a CNI's WireGuard device.
type cni struct {
	device string
	port   uint16
	fwmark string
}

// tunnels are two nodes behind a router, with kernel WireGuard tunnels between them. They are made with ip(8) and wg(8), as a
// CNI would. The API server is on the router.
type tunnels struct {
	*testing.T
	cni    cni
	lab    *netlab.Lab
	router *netlab.Host
	api    *fakeAPI
	apiTo  uint16 // the API server's port
	a, b   *testNode
}

// testNode is the i-th node: at 10.60.i.2, with the pods 10.244.i.0/24. Its own address among them is the first.
type testNode struct {
	*tunnels
	name   string
	host   *netlab.Host
	addr   netip.Addr
	pods   netip.Prefix
	inner  netip.Addr
	device string
	wire   string // the router's end of the node's link
	public string // its public key
	bpf    string // its BPF file system
	keys   string // its key directory
}

func newTunnels(t *testing.T, c cni) *tunnels {
	t.Helper()
	lab, hosts := netlabtest.Hosts(t, "tunnels", "router")
	u := &tunnels{T: t, cni: c, lab: lab, router: hosts[0], api: newFakeAPI()}
	u.needKernel()
	expect.NoError(u, u.router.Forward())
	u.serveAPI()
	u.a, u.b = u.addNode(1), u.addNode(2)
	u.a.knows(u.b)
	u.b.knows(u.a)
	return u
}

func (t *tunnels) try(err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// needKernel skips the test on kernels without WireGuard, unless the environment demands it.
func (t *tunnels) needKernel() {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe"
	probe := &netlink.Wireguard{LinkAttrs: attrs}
	err := t.router.Do(func() error {
		if err := netlink.LinkAdd(probe); err != nil {
			return err
		}
		return netlink.LinkDel(probe)
	})
	if errors.Is(err, unix.EOPNOTSUPP) && os.Getenv("ROPEWALK_INTEROP_STRICT") == "" {
		t.Skip("this kernel has no WireGuard (make test-kernels runs kernels that have)")
	}
	expect.NoError(t, err)
	for _, program := range []string{"ip", "wg"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("the kernel has WireGuard, but creating tunnels fails: %v", err)
		}
	}
}

// mountBPF mounts a BPF file system for a node.
func (t *tunnels) mountBPF() (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skipf("needs root and a kernel with a BPF file system: %v", err)
	}
	t.Cleanup(func() { t.try(unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func (t *tunnels) serveAPI() {
	t.Helper()
	var l net.Listener
	expect.NoError(t, t.router.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(t.Context(), "tcp4", ":0")
		return err
	}))
	t.apiTo = l.Addr().(*net.TCPAddr).AddrPort().Port()
	s := &http.Server{Handler: t.api.handler(), ReadHeaderTimeout: patience}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { t.try(s.Close()) })
}

func (t *tunnels) addNode(i byte) *testNode {
	t.Helper()
	n := &testNode{
		tunnels: t, name: fmt.Sprintf("node-%d", i), addr: netip.AddrFrom4([4]byte{10, 60, i, 2}),
		pods: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24), inner: netip.AddrFrom4([4]byte{10, 244, i, 1}),
		bpf: t.mountBPF(), keys: t.TempDir(),
	}
	var err error
	n.host, err = t.lab.Host(fmt.Sprintf("n%d", i))
	expect.NoError(t, err)
	c, err := t.lab.Cable(t.router, n.host, netlab.CableConfig{
		AddrsA: []netip.Prefix{netip.PrefixFrom(n.gateway(), 24)}, AddrsB: []netip.Prefix{netip.PrefixFrom(n.addr, 24)},
	})
	expect.NoError(t, err)
	n.wire, n.device = c.DeviceA, c.DeviceB
	expect.NoError(t, n.host.RouteVia(netip.MustParsePrefix("10.60.0.0/16"), n.gateway()))
	shareReceiving(t, t.router)
	shareReceiving(t, n.host)
	expect.NoError(t, t.api.addNode(n.name, n.addr, n.pods))
	n.makeTunnel()
	return n
}

func (n *testNode) gateway() netip.Addr { return n.addr.Prev() }

// shareReceiving makes all processors receive, each its flows, as a NIC with several queues does
// (Documentation/networking/scaling.rst, "RPS"). A veth alone receives on the processor that sends. ip(8) shows the namespace's
// own devices in /sys.
func shareReceiving(u *tunnels, h *netlab.Host) {
	u.Helper()
	mask := 1<<min(runtime.NumCPU(), 31) - 1
	set := fmt.Sprintf("for queue in /sys/class/net/*/queues/rx-*/rps_cpus; do echo %x >$queue; done", mask)
	if out, err := exec.Command("ip", "netns", "exec", h.Name(), "sh", "-ec", set).CombinedOutput(); err != nil {
		u.Fatalf("configuring RPS on %s: %v\n%s", h.Name(), err, out)
	}
}

// run runs a program on the node and returns its output.
func (n *testNode) run(input string, argv ...string) string {
	n.Helper()
	cmd := n.host.Command(n.Context(), argv...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.Fatalf("%q on %s: %v\n%s", argv, n.name, err, out)
	}
	return strings.TrimSpace(string(out))
}

// makeTunnel creates a WireGuard device without peers.
func (n *testNode) makeTunnel() {
	n.Helper()
	c := n.cni
	key := n.run("", "wg", "genkey")
	file := filepath.Join(n.TempDir(), "key")
	expect.NoError(n, os.WriteFile(file, []byte(key), 0o600))
	n.public = n.run(key, "wg", "pubkey")
	n.run("", "ip", "link", "add", c.device, "type", "wireguard")
	n.run("", "wg", "set", c.device, "listen-port", strconv.Itoa(int(c.port)), "private-key", file, "fwmark", c.fwmark)
	n.run("", "ip", "address", "add", n.inner.String()+"/32", "dev", c.device)
	n.run("", "ip", "link", "set", c.device, "mtu", "1420", "up")
}

func (n *testNode) endpoint() netip.AddrPort { return netip.AddrPortFrom(n.addr, n.cni.port) }

// knows makes another node a peer.
func (n *testNode) knows(o *testNode) {
	n.Helper()
	n.run("", "wg", "set", n.cni.device, "peer", o.public, "endpoint", o.endpoint().String(), "allowed-ips", o.pods.String())
	n.run("", "ip", "route", "replace", o.pods.String(), "dev", n.cni.device, "src", n.inner.String())
}

// forgets removes a peer with its session.
func (n *testNode) forgets(o *testNode) {
	n.Helper()
	n.run("", "wg", "set", n.cni.device, "peer", o.public, "remove")
}

// show returns the output of wg(8) about the node's only peer.
func (n *testNode) show(what string) []string {
	n.Helper()
	fields := strings.Fields(n.run("", "wg", "show", n.cni.device, what))
	if len(fields) < 2 {
		n.Fatalf("wg show %s on %s: %q", what, n.name, fields)
	}
	return fields[1:] // without the key
}

// transfer is what the tunnel has received and sent, in bytes.
func (n *testNode) transfer() (received, sent int) {
	n.Helper()
	fields := n.show("transfer")
	if len(fields) != 2 {
		n.Fatalf("wg show transfer on %s: got %q, want length 2", n.name, fields)
	}
	received, err := strconv.Atoi(fields[0])
	expect.NoError(n, err)
	sent, err = strconv.Atoi(fields[1])
	expect.NoError(n, err)
	return received, sent
}

// startAgents starts both nodes' agents, without a configured port, and waits until they spread.
func (t *tunnels) startAgents() []*agentProcess {
	t.Helper()
	var all []*agentProcess
	for _, n := range []*testNode{t.a, t.b} {
		at := netip.AddrPortFrom(n.gateway(), t.apiTo)
		all = append(all, startAgent(t.T, n.host, agentOrders{Node: n.name, Server: "http://" + at.String(), BPF: n.bpf, KeyDir: n.keys}))
	}
	expect.EventuallyNoError(t, "both to spread and gather", func() (err error) {
		for _, n := range []*testNode{t.a, t.b} {
			st, readErr := t.api.status(n.name)
			announced, unread := t.api.announced(n.name)
			if err = errors.Join(err, readErr, unread); !announced.Gathers || st.SpreadsTo != 1 {
				err = errors.Join(err, fmt.Errorf("the status of %s is %+v, its announcement %+v", n.name, st, announced))
			}
		}
		return err
	})
	return all
}
