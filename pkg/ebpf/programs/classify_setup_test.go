// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/test/expect"
)

// Verdicts of classify besides xdpPass.
const (
	xdpDrop     = 1
	xdpRedirect = 4
)

// limitOf returns a rate limit that is not refilled during a test.
func limitOf(n int) RateLimit { return RateLimit{Interval: time.Hour, Burst: n} }

func loadClassifyFor(t testing.TB, o ClassifyOptions) *Classify {
	t.Helper()
	c, err := LoadClassify(o)
	skipUnprivileged(t, err)
	if err != nil {
		t.Fatalf("got error %+v, want none", err)
	}
	t.Cleanup(func() { expect.NoError(t, c.Close()) })
	return c
}

// newClassify loads the program for the tests' tunnel and sets its addresses.
func newClassify(t testing.TB, o ClassifyOptions) *Classify {
	t.Helper()
	o.ListenPort = 51820
	c := loadClassifyFor(t, o)
	expect.NoError(t, c.SetAddresses([]netip.Addr{endpoint(us4).Addr(), endpoint(us6).Addr()}))
	return c
}

// addSocket sets the AF_XDP socket of a queue. The socket is not bound, which makes no difference to the program. Since
// Linux 7.2 it needs a receive ring.
func addSocket(t testing.TB, c *Classify, queue int) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs CAP_NET_RAW and a kernel with AF_XDP: %v", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_RX_RING, 64); err != nil {
		t.Fatalf("setting up the receive ring: %v", err)
	}
	expect.NoError(t, c.SetSocket(queue, fd))
	return fd
}

// classify returns the verdict on a packet, which must not change, and the counters. refused is set if the kernel does not
// accept the packet for BPF_PROG_TEST_RUN.
func classify(t testing.TB, c *Classify, in []byte) (verdict uint32, counts map[string]uint64, refused bool) {
	t.Helper()
	before, err := c.Counters()
	expect.NoError(t, err)
	o := &ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+256)}
	verdict, err = c.program.Run(o)
	if err != nil {
		return 0, nil, true
	}
	if !bytes.Equal(o.DataOut, in) {
		t.Errorf("% x became\n% x", in, o.DataOut)
	}
	return verdict, countsSince(t, c, before), false
}

// countsSince returns the counters' differences to before, by the names of events and drop reasons.
func countsSince(t testing.TB, c *Classify, before ClassifyCounters) map[string]uint64 {
	t.Helper()
	after, err := c.Counters()
	expect.NoError(t, err)
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

// checkRows runs packets and checks verdict and counter of each.
func checkRows(t *testing.T, c *Classify, rows []classifyRow) {
	t.Helper()
	for _, row := range rows {
		verdict, counts, refused := classify(t, c, row.in)
		switch {
		case refused:
			t.Errorf("%s: the kernel rejects the packet", row.name)
		case verdict != row.verdict:
			t.Errorf("%s: verdict %d, want %d", row.name, verdict, row.verdict)
		case row.counts == "" && len(counts) > 0, row.counts != "" && (len(counts) != 1 || counts[row.counts] != 1):
			t.Errorf("%s: counted %v, want %q", row.name, counts, row.counts)
		}
	}
}

// classifyRow is a packet with its verdict and the name of its counter, empty for none.
type classifyRow struct {
	name    string
	in      []byte
	verdict uint32
	counts  string
}

// toHost returns a packet from the tests' peer to the tunnel's listen port.
func toHost(v6 bool, change func(*datagram)) []byte {
	d := data(them4, us4)
	if v6 {
		d = data(them6, us6)
	}
	return d.with(change).bytes()
}

func unchanged(*datagram) {}

func withPayload(payload []byte) func(*datagram) { return func(d *datagram) { d.payload = payload } }

func initiation() []byte { return set(message(1, 148), 132, make([]byte, 16)...) }

func withMAC2() []byte { return set(initiation(), 147, 1) }

// peerAt returns the endpoint from which initiationFrom's initiation comes.
func peerAt(address string) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), 1)
}

// initiationFrom returns an initiation from that address.
func initiationFrom(address string) []byte {
	d := data(peerAt(address).String(), us4)
	if netip.MustParseAddr(address).Is6() {
		d.dst = us6
	}
	return d.with(withPayload(initiation())).bytes()
}
