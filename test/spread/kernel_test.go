// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/adopt"
)

// probeInKernel is done once: does the kernel know the link type?
var probeInKernel = sync.OnceValue(func() error {
	err := netlink.LinkAdd(wireguardLink("spreadprobe"))
	if err == nil {
		err = netlink.LinkDel(wireguardLink("spreadprobe"))
	}
	return err
})

func wireguardLink(name string) netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return &netlink.Wireguard{LinkAttrs: attrs}
}

// needKernel makes the tunnel one of the kernel's WireGuard, at both ends. It skips where there is none, unless there
// should be.
func needKernel(t *testing.T) {
	t.Helper()
	switch err := probeInKernel(); {
	case err == nil:
	case os.Getenv("ROPEWALK_INTEROP_STRICT") == "" && errors.Is(err, unix.EOPNOTSUPP):
		t.Skip("this kernel has no WireGuard (make test-kernels runs kernels that have)")
	case errors.Is(err, unix.EPERM):
		t.Skipf("needs root: %v", err)
	default:
		t.Fatalf("probing the kernel for WireGuard: %v", err)
	}
}

// startKernel makes the tunnel, and brings it up with a session.
func (l *lab) startKernel() {
	l.Helper()
	for _, s := range l.both() {
		l.must(s.host.Do(func() error { return netlink.LinkAdd(wireguardLink(s.ifname)) }))
		l.configure(s, l.other(s).endpoint())
		l.Cleanup(func() { _ = l.detach(s) }) // while the host is there
	}
	l.connect()
}

// connect sends until something arrives.
func (l *lab) connect() {
	l.Helper()
	f := l.newFlows()
	defer f.close()
	l.eventually("a session", func() error {
		if f.round(time.Second) {
			return nil
		}
		return errors.New("nothing arrives")
	})
}

// run runs ropewalk in a side's host.
func (l *lab) run(s *side, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := s.host.Command(ctx, append([]string{l.bin}, args...)...).CombinedOutput()
	return string(out), err
}

// attach spreads and gathers what s sends and receives. No flow may take another port while the test lasts.
func (l *lab) attach(s *side, args ...string) {
	l.Helper()
	args = append([]string{"spread", "attach", cable, "--port", strconv.Itoa(port), "--gap", "1m"}, args...)
	out, err := l.run(s, args...)
	if err != nil {
		l.Fatalf("%q on %s: %v\n%s", args, s.name, err, out)
	}
	l.Logf("%s: %s", s.name, strings.TrimSpace(out))
}

// attachPlanned gives both sides the ports that the other has planned.
func (l *lab) attachPlanned() {
	l.Helper()
	for _, s := range l.both() {
		var list []string
		for _, p := range l.plan(s) {
			list = append(list, strconv.Itoa(int(p)))
		}
		l.attach(s, "--ports", strings.Join(list, ","))
	}
}

func (l *lab) detach(s *side) error {
	out, err := l.run(s, "spread", "detach", cable)
	if err != nil {
		err = errors.Join(err, errors.New(out))
	}
	return err
}

func (l *lab) detachBoth() {
	l.Helper()
	for _, s := range l.both() {
		l.must(l.detach(s))
	}
}

// status is that of s's device; nil when nothing is attached.
func (l *lab) status(s *side) *adopt.DeviceStatus {
	l.Helper()
	out, err := l.run(s, "spread", "status", "--json")
	l.must(err)
	var st struct{ Devices []adopt.DeviceStatus }
	l.must(json.Unmarshal([]byte(out), &st))
	if len(st.Devices) == 0 {
		return nil
	}
	return &st.Devices[0]
}

// checkNoErrors asserts that a tunnel's interface has counted no error: none but WireGuard's own messages have come to it.
func (l *lab) checkNoErrors() {
	l.Helper()
	for _, s := range l.both() {
		l.must(s.host.Do(func() error {
			link, err := netlink.LinkByName(s.ifname)
			if err != nil {
				return err
			}
			n := link.Attrs().Statistics
			if n.RxErrors != 0 || n.TxErrors != 0 || n.RxFrameErrors != 0 {
				l.Errorf("%s counts %d rx errors (%d frame errors), %d tx errors", s.name, n.RxErrors, n.RxFrameErrors, n.TxErrors)
			}
			return nil
		}))
	}
}

func familyName(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

const rounds = 25

// attempts is how often flows may begin that share a lane by chance: one entry of the flow table, or a machine that
// stands still between two flows' first packets for so long that the load of the first is forgotten.
const attempts = 5

// TestKernelTunnelFlowsKeepPortAndQueue is the post of 2023: the tunnel is one flow to the NIC and takes one
// queue; spread, it takes them all, evenly where the receiver plans the ports, and no message overtakes another of its
// flow. The tunnels notice nothing.
func TestKernelTunnelFlowsKeepPortAndQueue(t *testing.T) {
	needKernel(t)
	for _, v6 := range []bool{false, true} {
		t.Run("over "+familyName(v6), func(t *testing.T) {
			l := newLab(t)
			l.connectHosts(v6, true)
			l.startKernel()
			off := l.send(rounds)
			l.Logf("off:       %v", off)
			if !off.allOnOnePort() || off.busiestQueueShare() < 0.95*queues || off.overtook+int(off.reordered) > 0 {
				l.Errorf("without spreading: %v", off)
			}
			for _, s := range l.both() {
				l.attach(s)
			}
			l.Logf("unplanned: %v", l.sendSpread(func(outcome) bool { return true }))
			l.Logf("by hash:   busiest queue %.2f times the mean", l.sendByHash())
			l.detachBoth()
			planned := l.sendPlanned()
			l.Logf("planned:   %v", planned)
			if planned.busiestQueueShare() > 1.25 {
				l.Errorf("with planned ports: %v, by queue: %v", planned, planned.queues)
			}
			l.detachBoth()
			if o := l.send(5); !o.allOnOnePort() {
				l.Errorf("detached: %v", o)
			}
			l.checkNoErrors()
		})
	}
}

// sendPlanned attaches with planned ports and sends.
func (l *lab) sendPlanned() outcome {
	l.Helper()
	return l.sendSpread(outcome.flowsOnSeparateQueues, func() {
		for _, s := range l.both() {
			_ = l.detach(s)
		}
		l.attachPlanned()
	})
}

// sendSpread sends, after preparations if there are any, until the outcome is good, and checks what must hold each time:
// each flow has one port, none overtakes itself, all is gathered, and the tunnels see the canonical endpoints only.
func (l *lab) sendSpread(good func(outcome) bool, prepare ...func()) outcome {
	l.Helper()
	for attempt := 1; ; attempt++ {
		for _, p := range prepare {
			p()
		}
		o, _ := l.sendFlows(l.watch(l.router, toRight), rounds, func() {
			l.checkEndpoint(l.left)
			l.checkEndpoint(l.right)
		})
		if o.movedFlows() > 0 || o.overtook+int(o.reordered) > 0 || o.distinctPorts() < flowCount/2 {
			l.Errorf("spread: %v", o)
		}
		for i, ports := range o.ports {
			if len(ports) == 1 && ports[0] == port {
				l.Errorf("flow %d was not spread", i)
			}
		}
		if good(o) || attempt == attempts {
			return o
		}
		l.Logf("once more: %v", o)
	}
}

// TestSpreadRecoversWhenDeviceReturns takes the left side's cable away and lays another.
func TestSpreadRecoversWhenDeviceReturns(t *testing.T) {
	needKernel(t)
	l := newLab(t)
	l.connectHosts(false, true)
	l.startKernel()
	l.attachPlanned()
	l.must(l.left.host.Do(func() error { return netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: cable}}) }))
	if st := l.status(l.left); st == nil || !strings.Contains(strings.Join(st.Problems, "\n"), "the device is gone") {
		t.Errorf("without its device: %+v", st)
	}
	l.connectLeft()
	l.connect()
	if o := l.send(5); !o.allOnOnePort() {
		t.Errorf("back, and not attached: %v", o)
	}
	planned := l.sendSpread(outcome.flowsOnSeparateQueues, l.attachPlanned)
	if planned.busiestQueueShare() > 1.25 {
		t.Errorf("healed: %v", planned)
	}
	for _, s := range l.both() {
		if st := l.status(s); st == nil || len(st.Problems) > 0 {
			t.Errorf("%s, healed: %+v", s.name, st)
		}
	}
	l.checkNoErrors()
}
