// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/drop"
)

// The verdicts of classify beside xdpPass.
const (
	xdpDrop     = 1
	xdpRedirect = 4
)

// atMost is a budget that is not refilled while tests run.
func atMost(n int) Budget { return Budget{Every: time.Hour, Burst: n} }

func loadClassifyFor(t testing.TB, o ClassifyOptions) *Classify {
	t.Helper()
	c, err := LoadClassify(o)
	skipUnprivileged(t, err)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// newClassify returns the program for the tests' tunnel, with its addresses.
func newClassify(t testing.TB, o ClassifyOptions) *Classify {
	t.Helper()
	o.Port = 51820
	c := loadClassifyFor(t, o)
	must(t, c.SetAddresses([]netip.Addr{endpoint(us4).Addr(), endpoint(us6).Addr()}))
	return c
}

// addSocket gives the queue to an AF_XDP socket. It is not bound, in which the program does not see a difference; but since
// Linux 7.2 it must have a ring to receive into.
func addSocket(t testing.TB, c *Classify, queue int) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs CAP_NET_RAW and a kernel with AF_XDP: %v", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_RX_RING, 64); err != nil {
		t.Fatalf("giving the socket a ring: %v", err)
	}
	must(t, c.SetSocket(queue, fd))
	return fd
}

// classify returns the verdict on a packet, which stays as it is, and what was counted. refused tells that the kernel
// does not take such a packet for a test.
func classify(t testing.TB, c *Classify, in []byte) (verdict uint32, counts map[string]uint64, refused bool) {
	t.Helper()
	before, err := c.Counters()
	must(t, err)
	o := &ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+256)}
	verdict, err = c.program.Run(o)
	if err != nil {
		return 0, nil, true
	}
	if !bytes.Equal(o.DataOut, in) {
		t.Errorf("% x became\n% x", in, o.DataOut)
	}
	return verdict, classified(t, c, before), false
}

// classified returns what was counted since before, by the names of events and drop reasons.
func classified(t testing.TB, c *Classify, before ClassifyCounters) map[string]uint64 {
	t.Helper()
	after, err := c.Counters()
	must(t, err)
	counts := map[string]uint64{}
	for e := range ClassifyEvent(ClassifyEventCount) {
		if n := after.Events[e] - before.Events[e]; n > 0 {
			counts[e.String()] = n
		}
	}
	for r := range drop.Reason(drop.Count) {
		if n := after.Drops[r] - before.Drops[r]; n > 0 {
			counts[r.String()] = n
		}
	}
	return counts
}

// verdicts runs packets that the kernel must take, and checks that each has the wanted verdict and one count.
func verdicts(t *testing.T, c *Classify, rows []classifyRow) {
	t.Helper()
	for _, row := range rows {
		verdict, counts, refused := classify(t, c, row.in)
		switch {
		case refused:
			t.Errorf("%s: the kernel refuses the packet", row.name)
		case verdict != row.verdict:
			t.Errorf("%s: verdict %d, want %d", row.name, verdict, row.verdict)
		case row.counts == "" && len(counts) > 0, row.counts != "" && (len(counts) != 1 || counts[row.counts] != 1):
			t.Errorf("%s: counted %v, want %q", row.name, counts, row.counts)
		}
	}
}

// classifyRow is a packet, and what becomes of it. Empty counts are none.
type classifyRow struct {
	name    string
	in      []byte
	verdict uint32
	counts  string
}

// toUs is a packet from the tests' peer to the tunnel's canonical port.
func toUs(v6 bool, change func(*datagram)) []byte {
	d := data(them4, us4)
	if v6 {
		d = data(them6, us6)
	}
	return d.with(change).bytes()
}

func unchanged(*datagram) {}

func carrying(payload []byte) func(*datagram) { return func(d *datagram) { d.payload = payload } }

func initiation() []byte { return set(message(1, 148), 132, make([]byte, 16)...) }

func withMAC2() []byte { return set(initiation(), 147, 1) }

// initiationFrom is a packet from another address.
func initiationFrom(address string) []byte {
	d := data(netip.AddrPortFrom(netip.MustParseAddr(address), 1).String(), us4)
	if netip.MustParseAddr(address).Is6() {
		d.dst = us6
	}
	return d.with(carrying(initiation())).bytes()
}
