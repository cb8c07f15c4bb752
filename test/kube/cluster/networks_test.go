// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestClusterWithNetworkPlugins has clusters whose pods are connected otherwise than by the bridges of TestCluster.
func TestClusterWithNetworkPlugins(t *testing.T) {
	for _, plugin := range []network{ptp, flannel("host-gw"), flannel("vxlan"), kubeRouter} {
		t.Run(plugin.name, func(t *testing.T) {
			c := startClusterOf(t, plugin, ipv4)
			c.applyPods()
			c.step("install", c.testInstall)
			c.step("pod to pod", c.testPodToPod)
			c.step("pods and nodes", c.testPodsAndNodes)
			c.step("services", c.testServices)
			if plugin.name == ptp.name {
				c.step("kubectl plugin", c.testKubectlPlugin)
			}
		})
	}
}

// TestClusterWithBypass has pods whose packets pass no routing of the node. Mode mesh cannot encrypt them (docs/kubernetes/mesh.md).
func TestClusterWithBypass(t *testing.T) {
	t.Run("macvlan", func(t *testing.T) {
		c := startClusterOf(t, macvlan, ipv4)
		c.applyPods()
		c.step("install", c.testInstall)
		c.step("readable", c.testReadable)
		c.step("not encrypted", c.testNotEncrypted)
	})
	t.Run("redirect", func(t *testing.T) {
		c := startClusterOf(t, ptp, ipv4)
		c.applyPods()
		c.step("install", func() { c.install(" --set mesh.cleartext=Always") })
		c.step("pod to pod", c.testPodToPod)
		for _, n := range c.nodes {
			n.redirect()
		}
		c.step("readable", c.testReadable)
		c.step("not encrypted", c.testNotEncrypted)
	})
}

// testReadable sends traffic that must be readable on both cables.
func (c *cluster) testReadable() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	var taps []*tap
	for _, n := range c.nodes {
		taps = append(taps, n.tap())
	}
	a.reaches(b)
	for _, t := range taps {
		t.endReadable()
	}
}

// testNotEncrypted waits until each node says that packets pass by its tunnel.
func (c *cluster) testNotEncrypted() {
	for _, n := range c.nodes {
		expect.EventuallyNoError(c, n.name+" says that it does not encrypt", func() error {
			out, err := c.try("kubectl", "get", "ropewalknode", n.name, "-o", `jsonpath={.status.conditions[?(@.type=="Encrypted")]['status','reason']}`)
			if err == nil && strings.TrimSpace(out) != "False BesideTunnel" {
				err = fmt.Errorf("got %q", out)
			}
			return err
		})
	}
}

// redirect attaches a program to the node's ends of its pods' cables that sends packets for pods of other nodes to the uplink at once, as Cilium's BPF host
// routing does.
func (n *node) redirect() {
	n.c.Helper()
	expect.NoError(n.c, n.host.Do(func() error {
		uplink, err := netlink.LinkByName(n.uplink)
		if err != nil {
			return err
		}
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual MIT/GPL", Instructions: n.redirecting(uplink.Attrs().Index)})
		if err != nil {
			return err
		}
		links, err := hostnet.Dump(netlink.LinkList)
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Type() != "veth" || l.Attrs().Name == n.uplink {
				continue
			}
			attached, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return err
			}
			n.c.Cleanup(func() { attached.Close() })
		}
		return nil
	}))
}

const (
	tcxNext   = -1
	headerLen = 14 // of Ethernet
	dstOffset = 16 // of the destination in the IPv4 header
)

// redirecting returns the instructions of a program that redirects IPv4 packets for pods of other nodes.
func (n *node) redirecting(uplink int) asm.Instructions {
	n.c.Helper()
	own, err := netip.ParsePrefix(n.pods[0])
	all, aerr := netip.ParsePrefix(n.c.ip[0].pods)
	expect.NoError(n.c, errors.Join(err, aerr))
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(12, asm.Half),
		asm.JNE.Imm(asm.R0, unix.ETH_P_IP, "next"),
		asm.LoadAbs(headerLen+dstOffset, asm.Word),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.RSh.Imm(asm.R7, int32(32-own.Bits())),
		asm.JEq.Imm(asm.R7, int32(beginning(own)), "next"),
		asm.RSh.Imm(asm.R0, int32(32-all.Bits())),
		asm.JNE.Imm(asm.R0, int32(beginning(all)), "next"),
		asm.Mov.Imm(asm.R1, int32(uplink)),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRedirectNeigh.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("next"),
		asm.Return(),
	}
}

// beginning returns the bits of an IPv4 prefix.
func beginning(p netip.Prefix) uint32 {
	b := p.Addr().As4()
	return (uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])) >> (32 - p.Bits())
}
