// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

// daemon is a running `ropewalk run`.
type daemon struct {
	cmd    *netlab.Command
	log    lockedBuffer
	exited chan error
}

// lockedBuffer is a bytes.Buffer that may be read while a process still writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startEngine runs ropewalk at both ends, configured, with a session.
func (l *lab) startEngine(args ...string) {
	l.Helper()
	for _, s := range l.both() {
		l.startDaemon(s, args...)
		l.configure(s, l.other(s).endpoint())
	}
	l.connect()
}

func (l *lab) startDaemon(s *side, args ...string) {
	l.Helper()
	argv := append(append([]string{l.bin, "run"}, args...), s.ifname)
	d := &daemon{cmd: s.host.Command(context.Background(), argv...), exited: make(chan error, 1)}
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	expect.NoError(l, d.cmd.Start())
	go func() { d.exited <- d.cmd.Wait() }()
	l.Cleanup(func() {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-d.exited:
			if err != nil {
				l.Errorf("the daemon on %s: %v", s.name, err)
			}
		case <-time.After(patience):
			l.Errorf("the daemon on %s ignores SIGTERM", s.name)
			_ = d.cmd.Process.Kill()
			_ = os.Remove("/var/run/wireguard/" + s.ifname + ".sock")
		}
		if l.Failed() {
			l.Logf("the daemon on %s wrote:\n%s", s.name, d.log.String())
		}
	})
	expect.EventuallyNoError(l, "the daemon to answer", func() error {
		return s.wg(func(c *wgctrl.Client) error {
			_, err := c.Device(s.ifname)
			return err
		})
	})
}

// spreading returns the spread state that a side's daemon reports for its peer.
func (l *lab) spreading(s *side) config.PeerSpread {
	l.Helper()
	c, err := uapi.Dial(s.ifname)
	expect.NoError(l, err)
	defer c.Close()
	var stats struct{ Spread config.SpreadReport }
	expect.NoError(l, c.Stats(&stats))
	p, ok := stats.Spread.Peers[l.other(s).key.PublicKey().String()]
	if !ok {
		l.Fatalf("%s reports no spread state of its peer: %+v", s.name, stats.Spread)
	}
	return p
}

// awaitSpread sends packets until both sides spread.
func (l *lab) awaitSpread() {
	l.Helper()
	f := l.newFlows()
	defer f.close()
	expect.EventuallyNoError(l, "spreading both ways", func() error {
		f.round(time.Second)
		var errs []error
		for _, s := range l.both() {
			if p := l.spreading(s); !p.Active {
				errs = append(errs, fmt.Errorf("%s: %+v", s.name, p))
			}
		}
		return errors.Join(errs...)
	})
}

// showLanes returns the output of `ropewalk show --lanes` on the side s.
func (l *lab) showLanes(s *side) string {
	l.Helper()
	out, err := l.run(s, "show", s.ifname, "--lanes")
	expect.NoError(l, err)
	if err == nil && !strings.Contains(out, "spread: ") {
		l.Fatalf("%s shows no lanes:\n%s", s.name, out)
	}
	return out
}

// TestEngineTunnelFlowsKeepTheirPort runs two ropewalks that negotiate spreading by themselves.
func TestEngineTunnelFlowsKeepTheirPort(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run("over "+familyName(v6), func(t *testing.T) {
			l := newLab(t)
			l.connectHosts(v6, true)
			l.startEngine()
			l.awaitSpread()
			o := l.sendEngine()
			t.Logf("on: %v", o)
			if !o.flowsOnSeparatePorts() {
				t.Errorf("spread: %v", o)
			}
			if !strings.Contains(l.showLanes(l.left), " ports") {
				t.Errorf("spreading, it shows\n%s", l.showLanes(l.left))
			}
			l.checkInOrder("on", fewSegments)
			for _, s := range l.both() {
				l.checkEndpoint(s)
			}
		})
	}
}

// sendEngine sends until each flow keeps a port of its own, with a few retries. If the machine stalls for longer than the
// flowlet gap, a flow may change its port and be reordered between two processors' queues.
func (l *lab) sendEngine() outcome {
	l.Helper()
	for attempt := 1; ; attempt++ {
		o, f := l.sendFlows(l.watch(l.router, toRight), rounds, func() { l.checkEndpoint(l.right) })
		if o.flowsOnSeparatePorts() && (o.reordered > 0 || o.overtook > 0) {
			l.Errorf("spread: %v", o)
		}
		if attempt == attempts || o.flowsOnSeparatePorts() {
			return o
		}
		l.Logf("retrying, rounds took up to %s: %v", f.slowest, o)
	}
}

// TestEngineWithoutSpreadUsesOnePort is the control of the test above.
func TestEngineWithoutSpreadUsesOnePort(t *testing.T) {
	l := newLab(t)
	l.connectHosts(false, true)
	l.startEngine("--spread", "off")
	o := l.send(rounds)
	t.Logf("off: %v", o)
	if !o.allOnOnePort() || o.busiestQueueShare() < 0.95*queues {
		t.Errorf("without spreading: %v", o)
	}
	l.checkInOrder("off", fewSegments)
}
