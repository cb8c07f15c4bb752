// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// maxSends is the number of times that a test sends the same packets while the kernel drops some. A kernel that drops a packet on purpose
// does so each time.
const maxSends = 5

// kernelCounters are files with the counters of a network namespace, which any thread may read.
type kernelCounters []*os.File

// openCounters opens the counters of this thread's network namespace.
func openCounters(t testing.TB) (c kernelCounters) {
	t.Helper()
	for _, name := range []string{"dev", "snmp", "snmp6", "netstat", "softnet_stat"} {
		f, err := os.Open("/proc/thread-self/net/" + name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		c = append(c, f)
	}
	return c
}

// drops returns the number of packets that the devices dropped: for want of memory, in a full queue, or because they cannot be segmented.
func (c kernelCounters) drops(t testing.TB) (n uint64) {
	t.Helper()
	const rxDrop, txDrop = 3, 11 // columns of /proc/net/dev
	for lines := bufio.NewScanner(bytes.NewReader(readCounters(c[0]))); lines.Scan(); {
		_, values, ok := strings.Cut(lines.Text(), ":")
		fields := strings.Fields(values)
		if !ok || len(fields) <= txDrop {
			continue
		}
		for _, i := range []int{rxDrop, txDrop} {
			v, err := strconv.ParseUint(fields[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			n += v
		}
	}
	return n
}

// String returns all counters.
func (c kernelCounters) String() string {
	var s strings.Builder
	for _, f := range c {
		s.WriteString(f.Name() + ":\n")
		s.Write(readCounters(f))
	}
	return s.String()
}

// readCounters reads a file of /proc from its beginning.
func readCounters(f *os.File) []byte {
	b := make([]byte, 1<<16)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return []byte(err.Error())
	}
	return b[:n]
}

func TestRouterSendsAgainAfterDrop(t *testing.T) {
	r := newRouter(t, true, 0)
	pkts := spec{src: 1, dst: 1}.run(40, 100)
	sends := 0
	got := r.forward(t, len(pkts), func() {
		sends++
		setQueueLen(t, "out", map[bool]int{true: 10, false: 500}[sends == 1])
		r.merge(t, pkts)
	})
	for i := range pkts {
		pkts[i] = forwarded(pkts[i])
	}
	diff(t, got, pkts)
	if sends != 2 {
		t.Errorf("sent %d times, want 2", sends)
	}
}

// setQueueLen changes the number of packets that a TUN holds.
func setQueueLen(t testing.TB, name string, n int) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetTxQLen(link, n); err != nil {
		t.Fatal(err)
	}
}
