// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestTunnelAccountsForPacketsOnImpairedNetwork has a network that drops 1% of the packets. At first it keeps their order, then a
// jitter of 5 ms reorders them. Neither tunnel may lose, reorder or refuse a packet that the network passes on. TCP completes.
func TestTunnelAccountsForPacketsOnImpairedNetwork(t *testing.T) {
	forPairings(t, []pairing{{ropewalk, inKernel}, {ropewalk, ropewalk}}, func(t *testing.T, p pairing) {
		l, n := newImpairedLab(t, p)
		flows := []*numberedFlows{newNumberedFlows(t, n, l.left, l.right), newNumberedFlows(t, n, l.right, l.left)}
		for _, f := range flows {
			f.send(t)
			f.wantArrivals(t)
			if r := f.reordered(); r > 0 {
				t.Errorf("%s received %d datagrams out of order from a network that keeps the order", f.to, r)
			}
		}
		n.impair(t, netlink.NetemQdiscAttrs{Latency: 10000, Jitter: 5000, Loss: 1})
		for _, f := range flows {
			f.send(t)
			f.wantArrivals(t)
			if f.reordered() == 0 {
				t.Errorf("%s received all datagrams in order despite the network's jitter", f.to)
			}
		}
		for _, x := range l.both() {
			bulk{from: x, to: l.other(x), v6: true, streams: manyStreams, bytes: eachOfMany}.run(t)
		}
		for _, x := range l.both() {
			n.wantDrops(t, x.host)
			n.wantCounted(t, x, l.other(x))
			x.noErrors(t)
		}
	})
}

// newImpairedLab starts a lab over a network with a loss of 1%. The right side initiates: the left one, which starts first, has no
// endpoint to which it would send too early.
func newImpairedLab(t *testing.T, p pairing) (*lab, *impairedNetwork) {
	t.Helper()
	n, h := newImpairedNetwork(t)
	l := newLabOver(t, p, false, func(t *testing.T, a, b *host) {
		n.plug(t, a, h)
		n.plug(t, b, h)
	})
	for _, x := range l.both() {
		y := l.other(x)
		expect.NoError(t, x.setNeighbor(y, l.outer[y].Addr().AsSlice()))
	}
	n.awaitUp(t)
	n.impair(t, netlink.NetemQdiscAttrs{Latency: 5000, Loss: 1})
	serveEcho(t, l.left.host)
	l.left.start(t, l.right.asPeer(netip.AddrPort{}, nil))
	l.left.awaitUp(t)
	l.right.start(t, l.peerOf(l.right))
	exchange(t, l.right, l.left.inner4.Addr(), 100)
	return l, n
}

// awaitUp waits until x, a ropewalk, reads its UDP port. It opens the port when it is notified that
// the interface is up. Until then a socket that reserves the port discards messages, uncounted.
func (x *tunnel) awaitUp(t *testing.T) {
	t.Helper()
	expect.EventuallyNoError(t, x.String()+" to open its port", func() error {
		c, err := uapi.Dial(x.ifname)
		if err != nil {
			return err
		}
		defer c.Close()
		var s struct{ Up bool }
		if err := c.Stats(&s); err != nil {
			return err
		}
		if !s.Up {
			return errors.New("the port is not open")
		}
		return nil
	})
}

// wantDrops asserts that netem dropped packets to a host.
func (n *impairedNetwork) wantDrops(t *testing.T, h *host) {
	t.Helper()
	drops, err := n.drops(h)
	expect.NoError(t, err)
	if drops == 0 {
		t.Errorf("netem dropped no packet to %s: the test tests nothing", h.name)
	}
}

// wantCounted asserts that x, if it is a ropewalk, counted each data message that it sent and each message that arrived, and that
// it dropped none except for a reason of overloadReasons. The in-kernel WireGuard does not count what it drops.
func (n *impairedNetwork) wantCounted(t *testing.T, x, y *tunnel) {
	t.Helper()
	if x.impl.name != ropewalk.name {
		return
	}
	for _, p := range n.ports {
		if missed := p.capture.Stats().Missed; missed > 0 {
			t.Fatalf("the capture of %s missed %d packets, so nothing can be compared", p.device, missed)
		}
	}
	expect.EventuallyNoError(t, x.String()+" to count all messages", func() error {
		sent, _, err := n.passed(x.host, y.host)
		if err != nil {
			return err
		}
		_, arrived, err := n.passed(y.host, x.host)
		if err != nil {
			return err
		}
		s, err := x.readStats()
		if err != nil {
			return err
		}
		return s.compare(sent, arrived)
	})
}

// tunnelStats are the sums of ropewalk's counters over all lanes.
type tunnelStats struct {
	sent, received uint64 // messages
	drops          map[string]uint64
}

func (x *tunnel) readStats() (sum tunnelStats, err error) {
	c, err := uapi.Dial(x.ifname)
	if err != nil {
		return sum, err
	}
	defer c.Close()
	var s engine.Stats
	if err := c.Stats(&s); err != nil {
		return sum, err
	}
	sum.drops = map[string]uint64{}
	maps.Copy(sum.drops, s.Drops)
	for _, l := range append(s.Lanes, s.Slow) {
		sum.sent += l.TxPackets
		sum.received += l.RxRunSizes.Messages
		for reason, n := range l.Drops {
			sum.drops[reason] += n
		}
	}
	return sum, nil
}

// overloadReasons are the reasons for which a ropewalk may drop received messages on a slow machine.
var overloadReasons = []string{"rx_socket", "rx_queue_full", "rx_congestion"}

// compare compares the counters with the captured messages. Handshake messages are counted only when they arrive.
func (s *tunnelStats) compare(sent, arrived []wireMessage) error {
	var err error
	sent = slices.DeleteFunc(slices.Clone(sent), func(m wireMessage) bool { return !m.isData() })
	if s.sent != uint64(len(sent)) {
		err = errors.Join(err, fmt.Errorf("%d data messages are counted as sent, want %d", s.sent, len(sent)))
	}
	if got := s.received + s.drops["rx_socket"]; got != uint64(len(arrived)) {
		err = errors.Join(err, fmt.Errorf("%d messages are counted as received, want %d", got, len(arrived)))
	}
	for reason, n := range s.drops {
		if strings.HasPrefix(reason, "rx_") && n > 0 && !slices.Contains(overloadReasons, reason) {
			err = errors.Join(err, fmt.Errorf("%d messages were dropped: %s", n, reason))
		}
	}
	return err
}
