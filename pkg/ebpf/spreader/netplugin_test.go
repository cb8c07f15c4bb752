// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/test/expect"
)

// pluginFilter is the name of the network plugin's filter.
const pluginFilter = "cil_netdev-eth0"

// addPlugin adds a filter as Cilium does on kernels without tcx: priority 1, handle 1, TC_ACT_OK for all packets. As Cilium's
// agent does when it starts, it first removes all filters of that direction if anew is set.
func (s *side) addPlugin(point hook.AttachPoint, anew bool) {
	s.r.Helper()
	s.addPluginAt(point, anew, 1, 1)
}

// addPluginAt is addPlugin with a priority and a handle. Calico's eBPF dataplane leaves both to the kernel, which takes priority
// 49152, or the one before that of the first filter there (tcf_auto_prio of Linux).
func (s *side) addPluginAt(point hook.AttachPoint, anew bool, priority uint16, handle uint32) {
	s.r.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	expect.NoError(s.r, err)
	defer p.Close()
	parent := uint32(netlink.HANDLE_MIN_EGRESS)
	if point == hook.Ingress {
		parent = netlink.HANDLE_MIN_INGRESS
	}
	s.do(func() error {
		l, err := netlink.LinkByName(s.device)
		if err != nil {
			return err
		}
		err = netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}})
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if anew {
			filters, err := netlink.FilterList(l, parent)
			for _, f := range filters {
				err = errors.Join(err, netlink.FilterDel(f))
			}
			if err != nil {
				return err
			}
		}
		return netlink.FilterReplace(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: parent, Handle: handle, Priority: priority, Protocol: unix.ETH_P_ALL},
			Fd:          p.FD(), Name: pluginFilter, DirectAction: true,
		})
	})
}

// portsSeen returns the source ports of here's flows as there's tunnel sees them, after the peer's source ports are proved if that is asked for.
func (r *rig) portsSeen(proved bool) (ports map[uint16]bool) {
	r.Helper()
	ports = map[uint16]bool{}
	senders, receiver := r.senders(), r.there.socket(port)
	if proved {
		r.prove(senders, receiver)
	}
	for _, of := range r.sources(senders, receiver) {
		for p := range of {
			ports[p] = true
		}
	}
	closeAll(senders, receiver)
	return ports
}

// TestSpreadRunsBeforeNetworkPlugin: a filter that accepts all packets would otherwise leave them on the listen port.
func TestSpreadRunsBeforeNetworkPlugin(t *testing.T) {
	t.Run("Cilium", func(t *testing.T) { spreadRunsBeforePlugin(t, 1, 1) })
	t.Run("Calico", func(t *testing.T) { spreadRunsBeforePlugin(t, 0, 0) })
}

func spreadRunsBeforePlugin(t *testing.T, priority uint16, handle uint32) {
	r := newRig(t)
	r.here.host.kind = hook.Clsact
	r.here.addPluginAt(hook.Egress, false, priority, handle)
	if report := r.here.attach(r.here.config()); report.SpreadBehind != nil {
		t.Errorf("got report %+v, want no SpreadBehind", report)
	}
	if ports := r.portsSeen(true); ports[port] || len(ports) < fewestPorts {
		t.Errorf("got ports %v, want %d different ones", ports, flows)
	}
	if st := r.here.status(); len(st.Problems) > 0 || st.Spread.Before != nil || len(st.Spread.After) != 1 || !strings.Contains(st.Spread.After[0], pluginFilter) {
		t.Errorf("got status %+v, want no Problems, and the plugin's filter in Spread.After", st)
	}
}

// TestGatherRunsBeforeNetworkPlugin: otherwise the receiver's WireGuard would see a roaming peer.
func TestGatherRunsBeforeNetworkPlugin(t *testing.T) {
	t.Run("Cilium", func(t *testing.T) { gatherRunsBeforePlugin(t, 1, 1) })
	t.Run("Calico", func(t *testing.T) { gatherRunsBeforePlugin(t, 0, 0) })
}

func gatherRunsBeforePlugin(t *testing.T, priority uint16, handle uint32) {
	r := newRig(t)
	r.here.host.kind, r.there.host.kind = hook.Clsact, hook.Clsact
	r.there.addPluginAt(hook.Ingress, false, priority, handle)
	r.here.attach(r.here.config())
	r.there.attach(r.there.config())
	r.there.addPluginAt(hook.Ingress, false, priority, handle) // Calico comes again, with another priority
	if ports := r.portsSeen(true); !ports[port] || len(ports) != 1 {
		t.Errorf("got ports %v, want %d alone", ports, port)
	}
}

// TestWatchComesInFrontOfNetworkPluginAgain has the plugin add its filter in front of ropewalk's, or after it has removed that. No
// poll is near: notifications alone must restore it.
func TestWatchComesInFrontOfNetworkPluginAgain(t *testing.T) {
	for name, anew := range map[string]bool{"added in front": false, "all others removed": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.here.host.kind = hook.Clsact
			reports, _, stop := r.here.watch(time.Hour)
			r.next(reports)
			r.here.addPlugin(hook.Egress, anew)
			r.next(reports)
			if st := r.here.status(); st.Spread.State != "attached" || st.Spread.Before != nil || len(st.Spread.After) != 1 || len(st.Problems) > 0 {
				t.Errorf("got status %+v, want ropewalk's filter in front of the plugin's", st)
			}
			stop()
			if ports := r.portsSeen(true); ports[port] || len(ports) < fewestPorts {
				t.Errorf("got ports %v, want %d different ones", ports, flows)
			}
			r.here.addPlugin(hook.Egress, true)
			if st := r.here.status(); len(st.Problems) == 0 {
				t.Errorf("without watch: got status %+v, want Problems", st)
			}
		})
	}
}

// attachForeignTCX attaches another program to egress by tcx, until detach.
func (s *side) attachForeignTCX() (detach func()) {
	s.r.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	expect.NoError(s.r, err)
	defer p.Close()
	var l link.Link
	s.do(func() error {
		l, err = link.AttachTCX(link.TCXOptions{Interface: deviceIndex(s.device), Program: p, Attach: ebpf.AttachTCXEgress})
		return err
	})
	return func() { expect.NoError(s.r, l.Close()) }
}

// TestProgramThatCannotBePrecededIsReported: tcx programs run before all filters.
func TestProgramThatCannotBePrecededIsReported(t *testing.T) {
	r := newRig(t)
	r.here.host.kind = hook.TCX
	r.here.attach(r.here.config()) // or skip the test
	r.here.detach(0)
	r.here.host.kind = hook.Clsact
	foreign := r.here.attachForeignTCX()
	defer foreign()
	report := r.here.attach(r.here.config())
	if len(report.SpreadBehind) != 1 || len(report.GatherBehind) != 0 || !slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.Contains(w, "not spread") }) {
		t.Errorf("got report %+v, want one program in SpreadBehind, with a warning", report)
	}
	if st := r.here.status(); len(st.Spread.Before) != 1 || len(st.Problems) != 1 || !strings.Contains(st.Problems[0], "cannot be preceded") {
		t.Errorf("got status %+v, want one program in Spread.Before and one problem", st)
	}
}
