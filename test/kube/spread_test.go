// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

const flows = 16

// startSpread starts the agent. All nodes share a BPF file system, in which each network namespace has its own directory.
func (n *node) startSpread(bpf string) {
	n.l.Helper()
	n.start("--mode", "spread", "--port", strconv.Itoa(port), "--any-socket", "--bpf-fs", bpf, "--key-dir", n.keys, "--tunnel", n.tunnel(), "--engine-config", n.engineConfig())
}

// mountBPF mounts a BPF file system for the test.
func mountBPF(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skipf("needs root and a kernel with a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// socket opens a socket that stands in for a node's in-kernel WireGuard.
func (n *node) socket() *net.UDPConn {
	n.l.Helper()
	var c *net.UDPConn
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		ctlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return errors.Join(err, ctlErr)
	}}
	expect.NoError(n.l, n.host.Do(func() error {
		p, err := config.ListenPacket(n.l.Context(), "udp4", netip.AddrPortFrom(n.addr, port).String())
		if err == nil {
			c = p.(*net.UDPConn)
		}
		return err
	}))
	n.l.Cleanup(func() { c.Close() })
	return c
}

// flowSocket is socket for one flow to another node: connect(2) gives the socket a hash of its own (sk_set_txhash), as the kernel's
// WireGuard gives the packets of each flow one.
func (n *node) flowSocket(to *node) *net.UDPConn {
	n.l.Helper()
	c := n.socket()
	raw, err := c.SyscallConn()
	expect.NoError(n.l, err)
	ctlErr := raw.Control(func(fd uintptr) {
		err = unix.Connect(int(fd), &unix.SockaddrInet4{Addr: to.addr.As4(), Port: port})
	})
	expect.NoError(n.l, errors.Join(err, ctlErr))
	return c
}

// sources sends data messages of several flows. It returns their source ports on the receiver's wire, and those seen by its
// socket.
func sources(from, to *node) (wire, arrived map[uint16]bool) {
	l := from.l
	l.Helper()
	wire, arrived = map[uint16]bool{}, map[uint16]bool{}
	var mu sync.Mutex
	c, err := l.fabric.Capture(netlab.CaptureConfig{Device: to.wire, Handle: func(p netlab.Packet) {
		if src, ok := dataMessage(p.Data, from.addr); ok && p.Outgoing {
			mu.Lock()
			defer mu.Unlock()
			wire[src] = true
		}
	}})
	expect.NoError(l, err)
	var senders []*net.UDPConn
	for range flows {
		senders = append(senders, from.flowSocket(to))
	}
	m := make([]byte, 96)
	m[0] = 4
	for _, s := range senders { // at once: see spreads
		_, err := s.WriteToUDPAddrPort(m, netip.AddrPortFrom(to.addr, port))
		expect.NoError(l, errors.Join(err, s.Close()))
	}
	receiver := to.tunnelSocket
	expect.NoError(l, receiver.SetReadDeadline(time.Now().Add(patience)))
	for range senders {
		_, at, err := receiver.ReadFromUDPAddrPort(m)
		expect.NoError(l, err)
		arrived[at.Port()] = true
	}
	expect.NoError(l, c.Stop())
	expect.NoError(l, c.Close())
	return wire, arrived
}

// dataMessage returns the source port of an Ethernet frame with a WireGuard data message from an address.
func dataMessage(b []byte, from netip.Addr) (uint16, bool) {
	if len(b) < 14+20+8+4 || binary.BigEndian.Uint16(b[12:]) != 0x0800 || b[14+9] != unix.IPPROTO_UDP {
		return 0, false
	}
	a := from.As4()
	return binary.BigEndian.Uint16(b[34:]), string(b[26:30]) == string(a[:]) && b[42] == 4
}

func TestFlowsSpreadBetweenNodesThatGather(t *testing.T) {
	bpf := mountBPF(t)
	l := newLab(t, 4)
	for _, n := range l.nodes {
		n.tunnelSocket = n.socket() // it stays open: the tunnel exists
	}
	three := l.nodes[:3]
	for _, n := range three {
		n.startSpread(bpf)
	}
	l.nodes = three
	l.awaitStatus("three agents spread to two others", func(st published) bool {
		return st.Mode == v1alpha1.ModeSpread && st.Gathers && st.Peers == 2 && st.SpreadsTo == 2
	})
	for _, n := range three {
		n.shows(fmt.Sprintf("ropewalk_spread_peers{device=%q,port=\"%d\",tunnel=\"?\"} 2\n", n.device, port))
	}
	l.nodes = l.nodes[:4]
	prove(l.nodes[0], l.nodes[1])
	expect.EventuallyNoError(l, "flows spread, once probes were answered", func() error { return spreads(l.nodes[0], l.nodes[1]) })
	wire, arrived := sources(l.nodes[0], l.nodes[3]) // a node without an agent
	if len(wire) != 1 || !wire[port] || !arrived[port] {
		t.Errorf("to a node without an agent: went from %v, arrived from %v", wire, arrived)
	}

	l.nodes[3].startSpread(bpf)
	l.awaitStatus("a fourth joins", func(st published) bool { return st.Gathers && st.Peers == 3 })
	prove(l.nodes[0], l.nodes[3])
	expect.EventuallyNoError(l, "flows spread towards it, and it gathers", func() error { return spreads(l.nodes[0], l.nodes[3]) })
}

// prove sends as many messages as the probes of all source ports need.
func prove(from, to *node) {
	l := from.l
	l.Helper()
	const batch = 32          // fits a receive buffer
	const probeMessages = 150 // PROBE_MESSAGES in bpf/include/probe.h
	s := from.flowSocket(to)
	defer s.Close()
	expect.NoError(l, to.tunnelSocket.SetReadDeadline(time.Now().Add(patience)))
	for range (probeMessages + 1) * spread.MaxPorts / batch {
		for range batch {
			_, err := s.WriteToUDPAddrPort([]byte{4, 95: 0}, netip.AddrPortFrom(to.addr, port))
			expect.NoError(l, err)
		}
		for range batch {
			_, _, err := to.tunnelSocket.ReadFromUDPAddrPort(make([]byte, 96))
			expect.NoError(l, err)
		}
	}
}

// spreads verifies that flows are spread from one node to another, and gathered there. Two flows may share a lane: a lane's
// flow is forgotten after a second (see bpf/include/lane.h), and a busy machine may take as long to send.
func spreads(from, to *node) error {
	wire, arrived := sources(from, to)
	if len(wire) < flows/2 || len(arrived) != 1 || !arrived[port] {
		return fmt.Errorf("went from %v, arrived from %v", wire, arrived)
	}
	for p := range wire {
		if !spread.DefaultPorts.Contains(p) {
			return fmt.Errorf("went from %d", p)
		}
	}
	return nil
}

// answer sends a data message to a node that has sent some, which would take the listen port after 25 s of silence.
func (n *node) answer(to *node) {
	n.l.Helper()
	m := make([]byte, 96)
	m[0] = 4
	_, err := n.tunnelSocket.WriteToUDPAddrPort(m, netip.AddrPortFrom(to.addr, port))
	expect.NoError(n.l, errors.Join(err, to.tunnelSocket.SetReadDeadline(time.Now().Add(patience))))
	_, _, err = to.tunnelSocket.ReadFromUDPAddrPort(m)
	expect.NoError(n.l, err)
}

func TestSpreadingSurvivesAgentKillAndUpgrade(t *testing.T) {
	bpf := mountBPF(t)
	l := newLab(t, 2)
	for _, n := range l.nodes {
		n.tunnelSocket = n.socket()
		n.startSpread(bpf)
	}
	a, b := l.nodes[0], l.nodes[1]
	l.awaitStatus("both spread", func(st published) bool { return st.Gathers && st.SpreadsTo == 1 })
	prove(a, b)
	expect.EventuallyNoError(l, "flows are spread", func() error { return spreads(a, b) })
	for what, end := range map[string]func(*node){"killed": (*node).kill, "stopped": (*node).stop} {
		end(a)
		end(b)
		for range 3 {
			if err := spreads(a, b); err != nil {
				t.Errorf("%s, and not there: %v", what, err)
			}
		}
		for _, n := range l.nodes {
			n.startSpread(bpf)
		}
		expect.EventuallyNoError(l, what+": both restarted", func() error {
			if err := spreads(a, b); err != nil { // meanwhile no message is lost, and none uses the listen port
				t.Fatalf("%s, during the restart: %v", what, err)
			}
			b.answer(a)
			for _, n := range l.nodes {
				if !strings.Contains(n.agent.log.String(), `msg="spread attached"`) {
					return errors.New(n.name + " has not")
				}
			}
			return nil
		})
	}
}

func TestMaliciousNodeDoesNotAffectOthersSpreading(t *testing.T) {
	bpf := mountBPF(t)
	l := newLab(t, 3)
	for _, n := range l.nodes[:2] {
		n.tunnelSocket = n.socket()
		n.startSpread(bpf)
	}
	liar := l.nodes[2]
	l.nodes = l.nodes[:2]
	l.awaitStatus("both spread", func(st published) bool { return st.Gathers && st.SpreadsTo == 1 })
	prove(l.nodes[0], l.nodes[1])
	generation := int64(1)
	for what, status := range map[string]map[string]any{
		"two ports at one address":        {"endpoints": []any{"192.0.2.3:51820", "192.0.2.3:51821"}},
		"a port that it spreads over":     {"endpoints": []any{"192.0.2.3:61000"}},
		"all ports":                       {"endpoints": []any{"192.0.2.3:51820"}, "spreadPorts": map[string]any{"first": int64(1024), "last": int64(65535)}},
		"another's address":               {"endpoints": []any{"192.0.2.1:51820"}},
		"this node's address, as its own": {"endpoints": []any{"192.0.2.2:51820", "192.0.2.255:51820", "127.0.0.1:51820"}},
	} {
		status["mode"], status["gathers"] = "spread", true
		expect.NoError(l, liar.publishes(status))
		generation++
		for _, n := range l.nodes {
			n.observes(map[string]any{"keyGeneration": generation})
		}
		expect.EventuallyNoError(l, what+": flows are spread nevertheless", func() error { return spreads(l.nodes[0], l.nodes[1]) })
	}
	l.awaitStatus("both still gather", func(st published) bool { return st.Gathers })
}
