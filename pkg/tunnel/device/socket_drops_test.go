// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestSocketDropsAreCountedPermanently sends a train that the sockets refuse.
func TestSocketDropsAreCountedPermanently(t *testing.T) {
	h := devicetest.NewUDP(t, 1, devicetest.Options{Lanes: 1})
	from, err := udp.Open(udp.Config{NoIPv6: true})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	h.Await("it is up", h.Up)
	if f := h.Stats().(device.Stats).Underlay; !f.Filter || !from.Features().GSO {
		t.Skipf("no trains, or none refused, on this kernel: %+v", f)
	}
	train := bytes.Repeat(append([]byte{1, 0, 0, 0}, make([]byte, 144)...), 3)
	refuse := func() {
		t.Helper()
		to := underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), h.Status().ListenPort)}
		run := underlay.Run{To: &to, Parts: [][]byte{train}, SegSize: 148, Segments: 3}
		if err := from.SendRun(&run); err != nil {
			t.Fatal(err)
		}
	}
	counted := func(n uint64) func() bool {
		return func() bool { return h.Stats().(device.Stats).Lanes[0].Drops["rx_socket"] == n }
	}
	refuse()
	h.Await("the train is counted", counted(1))
	down(h)
	if !counted(1)() {
		t.Error("the count went with the port")
	}
	h.TUN.SetUp(true)
	h.Await("it is up again", h.Up)
	refuse()
	h.Await("the next port's is added", counted(2))
}

// TestTUNQueueDropsAreCounted fills the TUN's queue, which no lane reads while the device is down. The kernel's counter goes on in the next
// device, without what it had before the first: then no daemon served the persistent interface.
func TestTUNQueueDropsAreCounted(t *testing.T) {
	const before, refused = 1000, 3
	lan := devicetest.NewLAN(nil)
	a := lan.Host(t, 1, devicetest.Options{Lanes: 1, Drops: before})
	a.Await("it is up", a.Up)
	down(a)
	for n := 0; n < refused; {
		if a.TUN.Inject(0, make([]byte, 100)) != nil {
			n++
		}
	}
	if n := a.Drops(drop.TXTUNQueue); n != refused {
		t.Errorf("%d drops are counted, want %d", n, refused)
	}
	s := handedOn(t, a)
	b := lan.Host(t, 1, devicetest.Options{Lanes: 1, Drops: before + refused + 1, Stop: true})
	expect.NoError(t, b.Resume(s))
	b.AddCounters(countersOf(t, a))
	if n := b.Drops(drop.TXTUNQueue); n != refused+1 {
		t.Errorf("after an upgrade %d drops are counted, want %d", n, refused+1)
	}
}
