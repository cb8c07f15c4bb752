// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/test/expect"
)

// probeInKernel reports whether the kernel supports the link type. It runs once.
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

// needKernel skips the test if the kernel has no WireGuard. If the environment requires it, the test fails.
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

// startKernel creates the tunnel and establishes a session.
func (l *lab) startKernel() {
	l.Helper()
	for _, s := range l.both() {
		expect.NoError(l, s.host.Do(func() error { return netlink.LinkAdd(wireguardLink(s.ifname)) }))
		l.configure(s, l.other(s).endpoint())
		l.Cleanup(func() { _ = l.detach(s) }) // while the host exists
	}
	l.connect()
}

// connect sends packets until one arrives.
func (l *lab) connect() {
	l.Helper()
	f := l.newFlows()
	defer f.close()
	expect.EventuallyNoError(l, "a session", func() error {
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

// attach spreads and gathers the packets of s. The gap is so long that no flow changes its port during the test.
func (l *lab) attach(s *side, args ...string) {
	l.Helper()
	args = append([]string{"spread", "attach", cable, "--port", strconv.Itoa(port), "--gap", "1m"}, args...)
	out, err := l.run(s, args...)
	if err != nil {
		l.Fatalf("%q on %s: %v\n%s", args, s.name, err, out)
	}
	l.Logf("%s: %s", s.name, strings.TrimSpace(out))
}

// attachPlanned attaches both sides with the port plan of the other.
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
	out, err := l.run(s, "spread", "detach")
	if err != nil {
		err = errors.Join(err, errors.New(out))
	}
	return err
}

func (l *lab) detachBoth() {
	l.Helper()
	for _, s := range l.both() {
		expect.NoError(l, l.detach(s))
	}
}

// status returns the status of s's device, or nil if nothing is attached.
func (l *lab) status(s *side) *spreader.DeviceStatus {
	l.Helper()
	out, err := l.run(s, "spread", "status", "--json")
	expect.NoError(l, err)
	var st struct{ Devices []spreader.DeviceStatus }
	expect.NoError(l, json.Unmarshal([]byte(out), &st))
	if len(st.Devices) == 0 {
		return nil
	}
	return &st.Devices[0]
}

// checkNoErrors fails if a tunnel's interface counted an error: it must receive only valid WireGuard messages.
func (l *lab) checkNoErrors() {
	l.Helper()
	for _, s := range l.both() {
		expect.NoError(l, s.host.Do(func() error {
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

// attempts is the number of retries after flows share a lane by chance: if they share an entry of the flow table, or if the
// machine stalls between their first packets until the load of the first has decayed.
const attempts = 5

// TestKernelTunnelFlowsKeepPortAndQueue reproduces "WireGuard IRQ distribution" (lists.zx2c4.com, May 2023). Without
// spreading the tunnel is one flow to the NIC and uses one queue. With spreading it uses all queues, evenly if the receiver
// plans the ports. Each flow stays in order, and WireGuard counts no errors.
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
				l.Errorf("with planned ports: got %v, by queue %v, want the busiest queue at most 1.25 times the mean", planned, planned.queues)
			}
			l.detachBoth()
			if o := l.send(5); !o.allOnOnePort() {
				l.Errorf("after the detachment: got %v, want all packets on one source port", o)
			}
			l.checkNoErrors()
		})
	}
}

// sendPlanned attaches with planned ports and sends.
func (l *lab) sendPlanned() outcome {
	l.Helper()
	return l.sendSpread(outcome.flowsOnSeparatePorts, func() {
		for _, s := range l.both() {
			_ = l.detach(s)
		}
		l.attachPlanned()
	})
}

// prove sends until the peer has answered a probe from each source port, and the load on the ports,
// which flows would avoid, has decayed. The network may drop some packets.
func (l *lab) prove() {
	l.Helper()
	f := l.newFlows()
	defer f.close()
	defer time.Sleep(3 * time.Second)
	expect.EventuallyNoError(l, "the source ports are proved", func() error {
		got := f.got.Load()
		for range 20 {
			f.round(200 * time.Millisecond)
		}
		if f.got.Load() == got {
			return errors.New("nothing arrives")
		}
		if p := l.status(l.left).Tunnels[0].Peers[0]; !p.Ready || len(p.Blocked) > 0 {
			return fmt.Errorf("the status is %+v", p)
		}
		return nil
	})
}

// sendSpread runs prepare and sends, until the outcome is good. Each time it checks that each flow has one port and is in
// order, that all source ports are restored, and that the tunnels know only endpoints with the listen port.
func (l *lab) sendSpread(good func(outcome) bool, prepare ...func()) outcome {
	l.Helper()
	for attempt := 1; ; attempt++ {
		for _, p := range prepare {
			p()
		}
		l.prove()
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

// TestSpreadRecoversWhenDeviceReturns replaces the left side's cable.
func TestSpreadRecoversWhenDeviceReturns(t *testing.T) {
	needKernel(t)
	l := newLab(t)
	l.connectHosts(false, true)
	l.startKernel()
	l.attachPlanned()
	expect.NoError(l, l.left.host.Do(func() error { return netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: cable}}) }))
	if st := l.status(l.left); st == nil || !strings.Contains(strings.Join(st.Problems, "\n"), "the device is gone") {
		t.Errorf("without its device: got %+v, want non-nil", st)
	}
	l.connectLeft()
	l.connect()
	if o := l.send(5); !o.allOnOnePort() {
		t.Errorf("after the device returned, before attaching: %v", o)
	}
	planned := l.sendSpread(outcome.flowsOnSeparatePorts, l.attachPlanned)
	if planned.busiestQueueShare() > 1.25 {
		t.Errorf("after attaching again: %v", planned)
	}
	for _, s := range l.both() {
		if st := l.status(s); st == nil || len(st.Problems) > 0 {
			t.Errorf("%s, after attaching again: got %+v, want non-nil", s.name, st)
		}
	}
	l.checkNoErrors()
}
