// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/replay"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/expect"
)

// twoQueues gives the loopback device two transmit queues of 400 Mbit/s, the second for packets with the returned priority.
func twoQueues(t *testing.T) (second uint32) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	expect.NoError(t, err)
	root := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT})
	root.Defcls = 1
	if err := netlink.QdiscAdd(root); err != nil {
		t.Skipf("needs the htb qdisc: %v", err)
	}
	for minor := range uint16(2) {
		second = netlink.MakeHandle(1, 1+minor)
		expect.NoError(t, netlink.ClassAdd(netlink.NewHtbClass(
			netlink.ClassAttrs{LinkIndex: lo.Attrs().Index, Parent: netlink.MakeHandle(1, 0), Handle: second},
			netlink.HtbClassAttrs{Rate: 400e6, Buffer: 256 << 10},
		)))
	}
	return second
}

// counters numbers the messages of all lanes, as one session does.
type counters struct {
	mu   sync.Mutex
	next uint64
}

// stamp writes the next counters into n messages of so many bytes.
func (c *counters) stamp(buf []byte, n, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range n {
		binary.LittleEndian.PutUint64(buf[i*size+8:], c.next)
		c.next++
	}
}

// sendUntil sends runs of n messages until stop, and waits pause after each. Like a lane it sends a refused run again.
func (c *counters) sendUntil(stop <-chan struct{}, l underlay.Lane, to *underlay.Endpoint, source, n int, pause time.Duration) {
	const size = 1452
	buf := make([]byte, n*size)
	for {
		c.stamp(buf, n, size)
		runs := []underlay.Run{{To: to, Parts: [][]byte{buf}, SegSize: size, Segments: n, Source: source}}
		for l.Send(runs) > 0 && errors.Is(runs[0].Err, underlay.ErrSendBufferFull) {
			time.Sleep(50 * time.Microsecond)
		}
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
	}
}

// TestLanesStayWithinReplayWindows has a lane whose messages wait in a queue of the device, and one whose messages pass them there. A
// receiver must not take those that were passed for replays.
func TestLanesStayWithinReplayWindows(t *testing.T) {
	requireNamespace(t)
	second := twoQueues(t)
	p := open(t, Config{Lanes: 2, SendBuffer: 1 << 20})
	source := openSource(t, p)
	expect.NoError(t, unix.SetsockoptInt(p.sources.Handle(source), unix.SOL_SOCKET, unix.SO_PRIORITY, int(second)))
	receiver := open(t, Config{NoGRO: true, ReceiveBuffer: 64 << 20})
	to := loopback(receiver, false)
	to.Src = netip.MustParseAddr("127.0.0.1")
	var c counters
	var senders sync.WaitGroup
	stop := make(chan struct{})
	senders.Go(func() { c.sendUntil(stop, p.Lane(0), &to, 0, 45, 0) })
	senders.Go(func() { c.sendUntil(stop, p.Lane(1), &to, source, 1, 5*time.Millisecond) })
	defer senders.Wait()
	defer close(stop)

	var stock replay.Filter
	var own session.Window
	var newest, furthest uint64
	sparse, rx := 0, make([]underlay.Datagrams, 16)
	for i := range rx {
		rx[i].Buf = make([]byte, 65535)
	}
	for sparse < 200 {
		n, err := receiver.Lane(0).Recv(rx)
		expect.NoError(t, err)
		for i := range n {
			counter := wire.Counter(rx[i].Buf)
			if !stock.ValidateCounter(counter, session.RejectAfterMessages) || !own.Accept(counter) {
				t.Fatalf("message %d is refused as a replay after message %d", counter, newest)
			}
			newest = max(newest, counter)
			furthest = max(furthest, newest-counter)
			if rx[i].From.Dst.Port() != p.LocalPort() {
				sparse++
			}
		}
	}
	if furthest < 45 {
		t.Errorf("messages were passed by %d at most: the device's queues are too short for this test", furthest)
	}
	t.Logf("messages were passed by up to %d others", furthest)
}
