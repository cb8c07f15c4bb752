// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/test/expect"
)

// reports waits until a condition of the nodes is that. Each try may send packets first.
func (l *lab) reports(nodes []*node, kind string, status metav1.ConditionStatus, reason string, first func()) {
	l.Helper()
	for _, n := range nodes {
		expect.EventuallyNoError(l, fmt.Sprintf("%s has %s=%s because of %s", n.name, kind, status, reason), func() error {
			if first != nil {
				first()
			}
			st, err := l.status(n.name)
			if err != nil {
				return err
			}
			if c := meta.FindStatusCondition(st.Conditions, kind); c == nil || c.Status != status || c.Reason != reason {
				return fmt.Errorf("it is %+v", c)
			}
			return nil
		})
	}
}

// runs runs a program on the node.
func (n *node) runs(input string, argv ...string) {
	n.l.Helper()
	cmd := n.host.Command(context.Background(), argv...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.l.Fatalf("%v on %s: %v\n%s", argv, n.name, err, out)
	}
}

// TestBlockedUDPPartitionsNothing: the pods keep their network, the nodes say what is wrong, and are encrypted once UDP passes.
func TestBlockedUDPPartitionsNothing(t *testing.T) {
	l := newLab(t, 4)
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
		n.runs(fmt.Sprintf("table inet blocked { chain in { type filter hook prerouting priority -400; udp dport %d drop; }; }", port), "nft", "-f", "-")
	}
	l.openly(pods)
	l.setMesh(map[string]any{"cleartext": "Auto"})
	for _, n := range l.nodes {
		n.startMesh()
	}
	talk := func() { l.reach(pods) }
	l.reports(l.nodes, "PeersReachable", metav1.ConditionFalse, "PeersLost", talk)
	l.reports(l.nodes, "Encrypted", metav1.ConditionFalse, "NoTunnel", talk)
	l.reports(l.nodes, "Strict", metav1.ConditionFalse, "Permissive", nil)
	for _, n := range l.nodes {
		if n.gauge("cleartext") != 1 || n.gauge(`condition{status="False",type="PeersReachable"}`) != 1 {
			t.Errorf("the metrics of %s do not say so", n.name)
		}
		if body, err := n.asks(probes, "/readyz"); err == nil {
			t.Errorf("the agent of %s is ready without peers that answer: %s", n.name, body)
		}
		n.runs("", "nft", "delete", "table", "inet", "blocked")
	}
	l.reports(l.nodes, "Encrypted", metav1.ConditionTrue, "SeenInTunnel", talk)
	l.reports(l.nodes, "Strict", metav1.ConditionTrue, "Latched", talk)
	for _, n := range l.nodes {
		if _, err := n.asks(probes, "/readyz"); err != nil {
			t.Errorf("the agent of %s: %v", n.name, err)
		}
	}
	e := l.eavesdrop()
	talk()
	e.stop(l)

	// UDP is blocked again. Now nothing leaves in the clear.
	for _, n := range l.nodes {
		n.runs(fmt.Sprintf("table inet blocked { chain in { type filter hook prerouting priority -400; udp dport %d drop; }; }", port), "nft", "-f", "-")
	}
	l.reports(l.nodes, "PeersReachable", metav1.ConditionFalse, "PeersLost", nil)
	l.refused(pods[0], pods[1])
}

// TestRedirectedPacketsAreNotCalledEncrypted has a program hand a pod's packets to the uplink, with the MAC address of the next hop, as Cilium's BPF
// host routing does.
func TestRedirectedPacketsAreNotCalledEncrypted(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	from, mac := l.nodes[0], l.nodes[1].link(l.nodes[1].device).HardwareAddr
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "redirect", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 16, asm.Word), // protocol
		asm.JNE.Imm(asm.R2, 0x0008, "out"),
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.StoreImm(asm.RFP, -8, int64(int32(binary.LittleEndian.Uint32(mac))), asm.Word),
		asm.StoreImm(asm.RFP, -4, int64(binary.LittleEndian.Uint16(mac[4:])), asm.Half),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 6),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R1, int32(from.link(from.device).Index)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return(),
	}})
	expect.NoError(t, err)
	defer p.Close()
	expect.NoError(t, from.host.Do(func() error {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: from.link(pods[0].end).Index, Program: p, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	}))
	l.reports(l.nodes[:1], "Encrypted", metav1.ConditionFalse, "BesideTunnel", func() { l.refused(pods[0], pods[1]) })
	if n := from.gauge(`guard_packets_total{class="remote",verdict="dropped"}`); n == 0 {
		t.Error("no packet was counted as dropped")
	}
}

// link returns a device of the node.
func (n *node) link(device string) (a *netlink.LinkAttrs) {
	n.l.Helper()
	expect.NoError(n.l, n.host.Do(func() error {
		d, err := netlink.LinkByName(device)
		if err == nil {
			a = d.Attrs()
		}
		return err
	}))
	return a
}

// TestMacvlanPodsAreNotCalledEncrypted: their packets never pass the node's routing.
func TestMacvlanPodsAreNotCalledEncrypted(t *testing.T) {
	l := newLab(t, 2)
	l.setMesh(map[string]any{"cleartext": "Auto"})
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addMacvlanPod())
		n.startMesh()
	}
	l.reports(l.nodes, "PeersReachable", metav1.ConditionTrue, "PeersAnswer", nil)
	l.reports(l.nodes, "Encrypted", metav1.ConditionFalse, "BesideTunnel", func() { l.reach(pods) })
	l.reports(l.nodes, "Strict", metav1.ConditionFalse, "Permissive", nil)
}

// addMacvlanPod creates a pod whose device is a macvlan on the node's uplink.
func (n *node) addMacvlanPod() *pod {
	l := n.l
	l.Helper()
	h, err := l.net.Host("p" + n.name[len("node-"):])
	expect.NoError(l, err)
	p := &pod{n: n, host: h, addr: n.pods.Addr().Next().Next()}
	name := "mv" + n.name[len("node-"):]
	n.runs("", "ip", "link", "add", name, "link", n.device, "netns", h.Name(), "type", "macvlan", "mode", "bridge")
	expect.NoError(l, h.SetUp(name, 1500, netip.PrefixFrom(p.addr, 16)))
	return p
}
