// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// impair drops 1% of the packets that a host sends through a device, and delays the others by 5 to 15 ms.
func (l *lab) impair(h *netlab.Host, device string) {
	l.Helper()
	err := h.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		return addNetem(attrs, netlink.NetemQdiscAttrs{Latency: 10000, Jitter: 5000, Loss: 1})
	})
	if errors.Is(err, errNoNetem) {
		l.Skip(err)
	}
	expect.NoError(l, err)
}

// TestFlowsKeepOrderOnImpairedNetwork has a network that drops and reorders packets behind the first router.
// Before it, each flow has one port and is in order. Behind it, datagrams are intact and TCP completes.
func TestFlowsKeepOrderOnImpairedNetwork(t *testing.T) {
	for _, kind := range []struct {
		name  string
		need  func(*testing.T)
		start func(*lab)
	}{
		{"kernel", needKernel, func(l *lab) {
			l.startKernel()
			for _, s := range l.both() {
				l.attach(s)
			}
			l.prove()
		}},
		{"ropewalk", func(*testing.T) {}, func(l *lab) {
			l.startEngine()
			l.awaitSpread()
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			kind.need(t)
			l := newLab(t)
			l.connectHosts(false, false)
			l.impair(l.router, fromLeft)
			l.impair(l.router, toRight)
			kind.start(l)
			l.sendOverImpairedNetwork()
			t.Logf("TCP segments out of order: %d", l.transfer(streamBytes/8))
			for _, s := range l.both() {
				l.checkEndpoint(s)
			}
		})
	}
}

// sendOverImpairedNetwork sends rounds with loss and reordering, and checks the packets that leave the left side and those that arrive.
func (l *lab) sendOverImpairedNetwork() {
	l.Helper()
	f, w := l.newFlows(), l.watch(l.left.host, cable)
	defer f.close()
	for range rounds {
		f.round(150 * time.Millisecond)
	}
	o, got, sent := w.end(), f.got.Load(), f.numbers*flowCount
	l.Logf("%d of %d datagrams arrived, %d late; %d ports, %d flows on more than one, %d messages overtaken on the way out",
		got, sent, f.reordered.Load(), o.distinctPorts(), o.movedFlows(), o.overtook)
	if got < sent/2 || f.corrupt.Load() > 0 {
		l.Errorf("%d of %d datagrams arrived, %d of them corrupt", got, sent, f.corrupt.Load())
	}
	if o.overtook > 0 && len(o.mixed) == 0 || o.distinctPorts() < flowCount/2 {
		l.Errorf("rounds took up to %s, sent: %v", f.slowest, o)
	}
}
