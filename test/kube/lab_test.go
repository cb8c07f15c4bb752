// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	port    = 51820
	apiAddr = "192.0.2.254"
)

// lab is a cluster: nodes and the API server on a bridge.
type lab struct {
	*api
	net    *netlab.Lab
	fabric *netlab.Host
	nodes  []*node
	door   *door
	dir    string // the token and the CA
	bpf    string // the BPF file system of the guards; "": there is none
	dual   bool   // nodes and pods have IPv6 as well
}

// node is the i-th node. It has the address 192.0.2.i and the pods 10.244.i.0/24, and with IPv6 also 2001:db8::i and
// fd00:244:i::/64.
type node struct {
	l      *lab
	name   string
	host   *netlab.Host
	addr   netip.Addr
	addr6  netip.Addr
	pods   netip.Prefix
	pods6  netip.Prefix
	device string
	wire   string // the bridge's end of its link
	keys   string // its key directory
	// release is the directory with the programs of another release; "": they are those under test.
	release string
	agent   *agent
	engine  *agent // runs the tunnel; nil: there is none

	tunnelSocket *net.UDPConn // of a userspace WireGuard other than ropewalk's
}

func newLab(t *testing.T, nodes int) *lab {
	t.Helper()
	return layLab(t, nodes, false)
}

func layLab(t *testing.T, nodes int, dual bool) *lab {
	t.Helper()
	nl, err := netlab.New("kube")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nl.Close(); err != nil {
			t.Error(err)
		}
	})
	l := &lab{api: startAPI(t), net: nl, dir: t.TempDir(), dual: dual}
	t.Cleanup(l.clear)
	l.mountBPF()
	l.layFabric()
	for i := 1; i <= nodes; i++ {
		l.addNode(i)
	}
	for _, n := range l.nodes {
		n.layRoutes()
	}
	return l
}

// mountBPF mounts a BPF file system for all nodes. A kernel without one has no guards.
func (l *lab) mountBPF() {
	l.Helper()
	dir := l.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return
	}
	l.bpf = dir
	l.Cleanup(func() { expect.NoError(l, unix.Unmount(dir, unix.MNT_DETACH)) })
}

// cniProtocol marks the routes of layRoutes.
const cniProtocol = 99

// layRoutes adds the routes of a cloud, or of a CNI without an overlay: to all other nodes' pods, in the clear.
func (n *node) layRoutes() {
	n.l.Helper()
	expect.NoError(n.l, n.host.Forward())
	for _, o := range n.l.nodes {
		if o == n {
			continue
		}
		via := o.addrs()
		for i, p := range o.allPods() {
			expect.NoError(n.l, n.host.Do(func() error {
				return netlink.RouteAdd(&netlink.Route{
					Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Gw: via[i].AsSlice(), Protocol: cniProtocol,
				})
			}))
		}
	}
}

// allPods returns the pods' prefixes of all IP versions; addrs returns the node's addresses in the same order.
func (n *node) allPods() []netip.Prefix {
	if !n.l.dual {
		return []netip.Prefix{n.pods}
	}
	return []netip.Prefix{n.pods, n.pods6}
}

func (n *node) addrs() []netip.Addr {
	if !n.l.dual {
		return []netip.Addr{n.addr}
	}
	return []netip.Addr{n.addr, n.addr6}
}

// lostRoutes counts the routes of layRoutes that are missing.
func (n *node) lostRoutes() int {
	n.l.Helper()
	var left int
	expect.NoError(n.l, n.host.Do(func() error {
		routes, err := hostnet.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: cniProtocol}, netlink.RT_FILTER_PROTOCOL)
		})
		left = len(routes)
		return err
	}))
	return len(n.l.nodes) - 1 - left
}

func (l *lab) layFabric() {
	l.Helper()
	var err error
	l.fabric, err = l.net.Host("fabric")
	expect.NoError(l, err)
	l.addBridge(l.fabric, netip.MustParsePrefix(apiAddr+"/24"))
	l.addDoor()
}

// addDoor makes the API server reachable on the bridge.
func (l *lab) addDoor() {
	l.Helper()
	l.door = l.newDoor(func() (ln net.Listener, err error) {
		err = l.fabric.Do(func() error {
			ln, err = new(net.ListenConfig).Listen(context.Background(), "tcp", apiAddr+":6443")
			return err
		})
		return ln, err
	})
	expect.NoError(l, os.WriteFile(filepath.Join(l.dir, "ca"), l.cfg.CAData, 0o600))
}

func (l *lab) addNode(i int) {
	l.Helper()
	l.addNodeOn(l.fabric, i, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
}

// addNodeOn adds a node to the bridge of a host.
func (l *lab) addNodeOn(fabric *netlab.Host, i int, addr netip.Addr) {
	l.Helper()
	n := &node{
		l: l, name: fmt.Sprintf("node-%d", i), addr: addr,
		pods: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24), keys: filepath.Join(l.TempDir(), "keys"),
		addr6: netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i)), pods6: netip.MustParsePrefix(fmt.Sprintf("fd00:244:%d::/64", i)),
	}
	var own []netip.Prefix
	for _, a := range n.addrs() {
		bits := 64
		if a.Is4() {
			bits = 24
		}
		own = append(own, netip.PrefixFrom(a, bits))
	}
	var err error
	n.host, err = l.net.Host(fmt.Sprintf("n%d", i))
	expect.NoError(l, err)
	c, err := l.net.Cable(fabric, n.host, netlab.CableConfig{AddrsB: own})
	expect.NoError(l, err)
	n.wire, n.device = c.DeviceA, c.DeviceB
	l.bridge(fabric, n.wire)
	n.join()
	l.nodes = append(l.nodes, n)
}

// bridge adds a device to the bridge of a host.
func (l *lab) bridge(h *netlab.Host, device string) {
	l.Helper()
	expect.NoError(l, h.Do(func() error {
		b, err := netlink.LinkByName("bridge0")
		if err != nil {
			return err
		}
		port, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, b)
	}))
}

// addBridge creates a host's bridge.
func (l *lab) addBridge(h *netlab.Host, addr netip.Prefix) {
	l.Helper()
	expect.NoError(l, h.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "bridge0"
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}))
	expect.NoError(l, h.SetUp("bridge0", 1500, addr))
}

// join writes the Node, as a kubelet and the controller manager do.
func (n *node) join() {
	n.l.Helper()
	nodes := n.l.clients.CoreV1().Nodes()
	spec := corev1.NodeSpec{PodCIDR: n.pods.String()}
	for _, p := range n.allPods() {
		spec.PodCIDRs = append(spec.PodCIDRs, p.String())
	}
	made, err := nodes.Create(n.l.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: spec}, metav1.CreateOptions{})
	expect.NoError(n.l, err)
	made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.name}}
	for _, a := range n.addrs() {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	_, err = nodes.UpdateStatus(n.l.Context(), made, metav1.UpdateOptions{})
	expect.NoError(n.l, err)
}

// agent is a running process of an agent, or of an engine.
type agent struct {
	cmd    *netlab.Command
	cancel context.CancelFunc
	log    *lockedBuffer
	done   chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start starts the node's agent with the rights of agents: its token belongs to a pod on this node.
func (n *node) start(args ...string) {
	n.l.Helper()
	bin := n.program("ropewalk-agent", agentBinary)
	token := filepath.Join(n.l.dir, n.name)
	expect.NoError(n.l, os.WriteFile(token, []byte(n.l.nodeToken(n.name)), 0o600))
	u, err := url.Parse(n.l.cfg.Host)
	expect.NoError(n.l, err)
	n.agent = n.spawn(append([]string{
		bin, "--node", n.name, "--server", "https://" + apiAddr + ":6443", "--server-name", u.Hostname(),
		"--token-file", token, "--ca-file", filepath.Join(n.l.dir, "ca"), "--learn", "1s", "--log-level", "debug",
		"--listen", probes, "--bpf-fs", n.l.bpf,
	}, args...)...)
	n.l.Cleanup(n.stop)
}

// program returns the path of one of the node's programs.
func (n *node) program(name string, tested func() (string, error)) string {
	n.l.Helper()
	if n.release != "" {
		return filepath.Join(n.release, name)
	}
	bin, err := tested()
	expect.NoError(n.l, err)
	return bin
}

// engineConfig is the file with which the node's engine starts.
func (n *node) engineConfig() string {
	return filepath.Join(filepath.Dir(n.keys), "engine", "tunnel.conf")
}

// startEngine starts a process that runs the node's tunnel, with the command of the unit for nodes without the chart's engine. It takes over from
// one that runs.
func (n *node) startEngine() {
	n.l.Helper()
	bin := n.program("ropewalk", ropewalkBinary)
	unit, err := os.ReadFile("../../deploy/systemd/ropewalk-engine@.service")
	expect.NoError(n.l, err)
	_, command, found := strings.Cut(string(unit), "\nExecStart=")
	command, _, _ = strings.Cut(command, "\n")
	if !found {
		n.l.Fatal("the unit has no command")
	}
	n.engine = n.spawn(strings.Fields(strings.NewReplacer(
		"/usr/bin/ropewalk", bin, "/var/lib/ropewalk/engine/tunnel.conf", n.engineConfig(), "$ARGS", "--metrics "+engineMetrics+" --metrics-per-peer off", "%i", n.tunnel(),
	).Replace(command))...)
	n.l.Cleanup(n.stopEngine)
}

// stopEngine ends the engine, if one runs. Its interface stays, and drops packets.
func (n *node) stopEngine() {
	if n.engine != nil {
		n.engine.end()
		n.engine = nil
	}
}

// halt ends the agent and the engine.
func (n *node) halt() {
	n.stop()
	n.stopEngine()
}

// spawn starts a process on the node, and shows its log if the test fails.
func (n *node) spawn(argv ...string) *agent {
	n.l.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{cmd: n.host.Command(ctx, argv...), cancel: cancel, log: &lockedBuffer{}, done: make(chan struct{})}
	a.cmd.Stdout, a.cmd.Stderr = a.log, a.log
	expect.NoError(n.l, a.cmd.Start())
	go func() {
		_ = a.cmd.Wait()
		close(a.done)
	}()
	n.l.Cleanup(func() {
		a.end()
		if n.l.Failed() {
			n.l.Logf("%s: %s:\n%s", n.name, filepath.Base(argv[0]), a.log)
		}
	})
	return a
}

// end ends the process with SIGTERM, unless it has ended.
func (a *agent) end() {
	a.cancel()
	<-a.done
}

// kill ends the agent with SIGKILL, as the OOM killer does.
func (n *node) kill() {
	n.l.Helper()
	expect.NoError(n.l, n.agent.cmd.Process.Kill())
	<-n.agent.done
	n.agent.cancel()
	n.agent = nil
}

// stop ends the agent with SIGTERM, if it runs.
func (n *node) stop() {
	if n.agent != nil {
		n.agent.end()
		n.agent = nil
	}
}

// The listen addresses of agents and engines, each in its node's namespace.
const (
	probes        = "127.0.0.1:9567"
	engineMetrics = "127.0.0.1:9568"
)

// metrics returns the metrics of the agent, and of the engine if there is one with a tunnel.
func (n *node) metrics() (text string, err error) {
	text, err = n.asks(probes, "/metrics")
	if err == nil && n.engine != nil {
		more, _ := n.asks(engineMetrics, "/metrics") // it has no tunnel yet
		text += more
	}
	return text, err
}

// asks returns the answer of a server on the node. One that is not 200 is an error.
func (n *node) asks(addr, path string) (text string, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, to string) (c net.Conn, err error) {
		doErr := n.host.Do(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, to)
			return err
		})
		return c, doErr
	}}}
	r, err := client.Get("http://" + addr + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, b)
	}
	return string(b), err
}

// gauge returns one of the agent's metrics, or -1 if it is missing.
func (n *node) gauge(name string) int {
	n.l.Helper()
	text, err := n.metrics()
	expect.NoError(n.l, err)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "ropewalk_agent_"+name+" "); ok {
			v, err := strconv.Atoi(strings.TrimSpace(value))
			expect.NoError(n.l, err)
			return v
		}
	}
	return -1
}

// shows waits until the agent's metrics contain a text.
func (n *node) shows(want string) {
	n.l.Helper()
	expect.EventuallyNoError(n.l, n.name+" shows "+want, func() error {
		text, err := n.metrics()
		if err == nil && !strings.Contains(text, want) {
			err = errors.New(text)
		}
		return err
	})
}

// ask writes the node's spec, as administrators do.
func (n *node) ask(spec map[string]any) error {
	_, err := n.l.dynamic.Resource(rwnodes).Apply(n.l.Context(), n.name, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkNode", "metadata": map[string]any{"name": n.name}, "spec": spec,
	}}, metav1.ApplyOptions{FieldManager: "administrator", Force: true})
	return err
}

// observes writes a changed spec and waits until the agent has observed it. Its watch delivers in order: the agent then has all
// earlier writes to RopewalkNodes as well.
func (n *node) observes(spec map[string]any) {
	n.l.Helper()
	expect.NoError(n.l, n.ask(spec))
	asked, err := n.l.dynamic.Resource(rwnodes).Get(n.l.Context(), n.name, metav1.GetOptions{})
	expect.NoError(n.l, err)
	expect.EventuallyNoError(n.l, n.name+" observes the new spec", func() error {
		st, err := n.l.status(n.name)
		if err == nil && st.ObservedGeneration != asked.GetGeneration() {
			err = fmt.Errorf("observed generation %d, want %d", st.ObservedGeneration, asked.GetGeneration())
		}
		return err
	})
}

// publish writes a node's objects, as its agent does. fields are those of the status and of the announcement.
func publish(ctx context.Context, client dynamic.Interface, owner *corev1.Node, fields map[string]any) error {
	options := metav1.ApplyOptions{FieldManager: "ropewalk-agent", Force: true}
	object := func(kind, part string, fields map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "ropewalk.io/v1alpha1", "kind": kind, "metadata": map[string]any{"name": owner.Name}, part: fields,
		}}
		if part != "status" {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID}})
		}
		return o
	}
	status, spec := map[string]any{}, map[string]any{}
	announced := reflect.TypeFor[v1alpha1.AnnouncementSpec]()
	for name, value := range fields {
		if _, is := announced.FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) }); is {
			spec[name] = value
		} else {
			status[name] = value
		}
	}
	_, err := client.Resource(rwnodes).Apply(ctx, owner.Name, object("RopewalkNode", "spec", map[string]any{}), options)
	if err == nil {
		_, err = client.Resource(rwnodes).ApplyStatus(ctx, owner.Name, object("RopewalkNode", "status", status), options)
	}
	if err == nil {
		_, err = client.Resource(rwannouncements).Apply(ctx, owner.Name, object("RopewalkAnnouncement", "spec", spec), options)
	}
	return err
}

// publishes writes the node's objects, as its agent does.
func (n *node) publishes(fields map[string]any) error {
	owner, err := n.l.clients.CoreV1().Nodes().Get(n.l.Context(), n.name, metav1.GetOptions{})
	expect.NoError(n.l, err)
	return publish(n.l.Context(), n.l.dynamic, owner, fields)
}

// published is what a node's agent has published for people and for other agents.
type published struct {
	v1alpha1.NodeStatus
	v1alpha1.AnnouncementSpec
}

// status returns what a node's agent has published.
func (l *lab) status(name string) (p published, err error) {
	var rn v1alpha1.RopewalkNode
	var ra v1alpha1.RopewalkAnnouncement
	for r, to := range map[schema.GroupVersionResource]any{rwnodes: &rn, rwannouncements: &ra} {
		o, err := l.dynamic.Resource(r).Get(l.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && r == rwannouncements {
			continue // it announces nothing
		}
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, to)
		}
		if err != nil {
			return p, err
		}
	}
	return published{rn.Status, ra.Spec}, nil
}

// awaitStatus waits until the status of all nodes meets a condition.
func (l *lab) awaitStatus(what string, right func(published) bool) {
	l.Helper()
	expect.EventuallyNoError(l, what, func() error {
		for _, n := range l.nodes {
			st, err := l.status(n.name)
			if err != nil {
				return err
			}
			if !right(st) {
				text, _ := json.Marshal(st)
				return fmt.Errorf("%s: %s", n.name, text)
			}
		}
		return nil
	})
}
