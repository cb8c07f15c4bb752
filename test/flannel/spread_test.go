// SPDX-License-Identifier: Apache-2.0

package flannel

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/flannel/node"
	"github.com/ropewalk/ropewalk/test/program"
)

const (
	tunnel      = "flannel-wg"
	listenPort  = 51820 // of flannel's tunnels
	cable       = "cable0"
	connections = 16
	// patience suits an emulated machine.
	patience = 60 * time.Second
)

var ropewalk = program.Ropewalk()

func TestMain(m *testing.M) {
	if config := os.Getenv(nodeEnv); config != "" {
		if err := node.Run(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(program.Main(m, ropewalk))
}

// nodeEnv makes the test binary a node's flannel: its value is a node, as JSON.
const nodeEnv = "FLANNEL_NODE"

// cluster is two nodes with a pod each.
type cluster struct {
	*testing.T
	bin   string
	nodes [2]*netlab.Host
	pods  [2]*netlab.Host
	addrs [2]netip.Addr // of the pods
}

// needWireGuard skips the test if the kernel has no WireGuard. If the environment requires it, the test fails.
func needWireGuard(t *testing.T, h *netlab.Host) {
	t.Helper()
	err := h.Do(func() error {
		link := &netlink.Wireguard{LinkAttrs: netlink.NewLinkAttrs()}
		link.Name = "probe"
		return errors.Join(netlink.LinkAdd(link), netlink.LinkDel(link))
	})
	if errors.Is(err, unix.EOPNOTSUPP) && os.Getenv("ROPEWALK_INTEROP_STRICT") == "" {
		t.Skip("this kernel has no WireGuard (make test-kernels runs kernels that have)")
	}
	expect.NoError(t, err)
}

// startCluster connects the hosts and starts flannel on both nodes.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	lab, hosts := netlabtest.Hosts(t, "flannel", "nodea", "nodeb", "poda", "podb")
	needWireGuard(t, hosts[0])
	c := &cluster{T: t, bin: ropewalk.Need(t), nodes: [2]*netlab.Host(hosts[:2]), pods: [2]*netlab.Host(hosts[2:])}
	outer := [2]netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24")}
	_, err := lab.Cable(c.nodes[0], c.nodes[1], netlab.CableConfig{AddrsA: outer[:1], AddrsB: outer[1:]})
	expect.NoError(t, err)
	leases := t.TempDir()
	for i, h := range c.nodes {
		pods := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 24)
		gateway := pods.Addr().Next()
		c.addrs[i] = gateway.Next()
		expect.NoError(t, h.Forward())
		_, err := lab.Cable(h, c.pods[i], netlab.CableConfig{
			MTU:    1420, // what flannel tells the CNI plugin: 1500 less its overhead
			AddrsA: []netip.Prefix{netip.PrefixFrom(gateway, 24)}, AddrsB: []netip.Prefix{netip.PrefixFrom(c.addrs[i], 24)},
		})
		expect.NoError(t, err)
		expect.NoError(t, c.pods[i].RouteVia(netip.MustParsePrefix("0.0.0.0/0"), gateway))
		c.startFlannel(h, node.Node{
			Backend: "wireguard",
			Name:    h.Name(), Device: cable, Addr: outer[i].Addr(), Pods: pods,
			Leases: leases, Key: filepath.Join(t.TempDir(), "key"),
		})
	}
	t.Cleanup(c.logState) // before the hosts are removed
	return c
}

// logState logs the tunnels and routes of the nodes after a failure.
func (c *cluster) logState() {
	for _, h := range c.nodes {
		for _, argv := range [][]string{{"wg", "show"}, {"ip", "address"}, {"ip", "route"}} {
			if c.Failed() {
				out, err := h.Command(context.Background(), argv...).CombinedOutput()
				c.Logf("%s: %v: %v\n%s", h.Name(), argv, err, out)
			}
		}
	}
}

func (c *cluster) startFlannel(h *netlab.Host, n node.Node) {
	c.Helper()
	self, err := os.Executable()
	expect.NoError(c, err)
	config, err := json.Marshal(n)
	expect.NoError(c, err)
	var log bytes.Buffer
	cmd := h.Command(context.Background(), self)
	cmd.Env = append(os.Environ(), nodeEnv+"="+string(config))
	cmd.Stdout, cmd.Stderr = &log, &log
	expect.NoError(c, cmd.Start())
	c.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil || c.Failed() {
			c.Logf("flannel on %s: %v\n%s", h.Name(), err, log.String())
		}
	})
}

// attach runs ropewalk on a node, and undoes it at the end.
func (c *cluster) attach(h *netlab.Host) {
	c.Helper()
	out, err := c.run(h, "spread", "attach", cable, "--port", fmt.Sprint(listenPort), "--gap", "1m")
	if err != nil {
		c.Fatalf("attaching on %s: %v\n%s", h.Name(), err, out)
	}
	c.Cleanup(func() { _, _ = c.run(h, "spread", "detach") })
}

func (c *cluster) run(h *netlab.Host, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := h.Command(ctx, append([]string{c.bin}, args...)...).CombinedOutput()
	return string(out), err
}

// transfer carries n bytes from pod a to pod b over each of several connections at once.
func (c *cluster) transfer(connections, n int) error {
	var listener net.Listener
	if err := c.pods[1].Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(c.addrs[1], 0).String())
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	go serve(listener)
	errs := make(chan error, connections)
	for range connections {
		go func() {
			errs <- c.pods[0].Do(func() error { return send(listener.Addr().String(), n) })
		}()
	}
	var all error
	for range connections {
		all = errors.Join(all, <-errs)
	}
	return all
}

// serve returns to each client what it sends.
func serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

// send sends n bytes and expects them back.
func send(to string, n int) error {
	conn, err := net.DialTimeout("tcp", to, 2*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	data := bytes.Repeat([]byte("ropewalk"), n/8)
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		sent <- err
	}()
	got := make([]byte, len(data))
	_, err = io.ReadFull(conn, got)
	if err == nil && !bytes.Equal(got, data) {
		err = errors.New("the data came back changed")
	}
	return errors.Join(err, <-sent)
}

// ports counts the data messages that leave a node, by source port.
type ports struct {
	mu    sync.Mutex
	count map[uint16]int
}

func (p *ports) take(packet netlab.Packet) {
	const udp, message = 14 + 20, 14 + 20 + 8
	b := packet.Data
	if !packet.Outgoing || len(b) < message+4 || b[14+9] != unix.IPPROTO_UDP || binary.LittleEndian.Uint32(b[message:]) != 4 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count[binary.BigEndian.Uint16(b[udp:])]++
}

// usedPorts returns the source ports of data messages from each node while f runs.
func (c *cluster) usedPorts(f func()) (used [2]map[uint16]int) {
	c.Helper()
	var captures [2]*netlab.Capture
	for i, h := range c.nodes {
		p := &ports{count: map[uint16]int{}}
		used[i] = p.count
		capture, err := h.Capture(netlab.CaptureConfig{Device: cable, Handle: p.take})
		expect.NoError(c, err)
		c.Cleanup(func() { _ = capture.Close() })
		captures[i] = capture
	}
	f()
	for _, capture := range captures {
		expect.NoError(c, capture.Stop())
	}
	return used
}

// checkTunnel fails unless WireGuard knows the other node by its listen port and has counted no receive error.
func (c *cluster) checkTunnel(h *netlab.Host) {
	c.Helper()
	expect.NoError(c, h.Do(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer client.Close()
		d, err := client.Device(tunnel)
		if err != nil {
			return err
		}
		if len(d.Peers) != 1 || d.Peers[0].Endpoint.Port != listenPort {
			c.Errorf("%s has peers %+v, want one with endpoint port %d", h.Name(), d.Peers, listenPort)
		}
		link, err := netlink.LinkByName(tunnel)
		if err != nil {
			return err
		}
		// Transmit errors are packets for a pod whose node flannel did not know yet.
		if n := link.Attrs().Statistics; n.RxErrors != 0 || n.RxFrameErrors != 0 {
			c.Errorf("%s on %s counts %d rx errors (%d frame errors)", tunnel, h.Name(), n.RxErrors, n.RxFrameErrors)
		}
		return nil
	}))
}

// events returns an event counter of a node's programs.
func (c *cluster) events(h *netlab.Host, name string) uint64 {
	c.Helper()
	out, err := c.run(h, "spread", "status", "--json")
	expect.NoError(c, err)
	var status struct{ Devices []spreader.DeviceStatus }
	expect.NoError(c, json.Unmarshal([]byte(out), &status))
	for _, d := range status.Devices {
		for _, counter := range d.Counters {
			if counter.Name == name {
				return counter.Count
			}
		}
	}
	c.Fatalf("%s has no counter %s:\n%s", h.Name(), name, out)
	return 0
}

// TestSpreadInFrontOfFlannel: connections between pods take source ports of their own through flannel's tunnel, in both directions, and
// WireGuard notices nothing.
func TestSpreadInFrontOfFlannel(t *testing.T) {
	c := startCluster(t)
	expect.EventuallyNoError(t, "the pods to reach each other", func() error { return c.transfer(1, 8) })
	carry := func() { expect.NoError(t, c.transfer(connections, 64<<10)) }
	for i, used := range c.usedPorts(carry) {
		if len(used) != 1 || used[listenPort] == 0 {
			t.Errorf("node %d without spread: data messages by source port: %v, want all from %d", i, used, listenPort)
		}
	}
	for _, h := range c.nodes {
		c.attach(h)
	}
	for i, used := range c.usedPorts(carry) {
		if len(used) < connections/2 {
			t.Errorf("node %d with spread: data messages by source port: %v, want at least %d ports", i, used, connections/2)
		}
	}
	for _, h := range c.nodes {
		c.checkTunnel(h)
		if spread, gathered := c.events(h, "spread"), c.events(h, "gather"); spread == 0 || gathered == 0 {
			t.Errorf("%s counts %d messages spread and %d gathered", h.Name(), spread, gathered)
		}
	}
}
