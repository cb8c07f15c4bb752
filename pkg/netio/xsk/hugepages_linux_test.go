// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestFramesLieInReportedPageSize: the machine decides whether there are huge pages (vm.nr_hugepages).
func TestFramesLieInReportedPageSize(t *testing.T) {
	const frames = 1024 // two huge pages for both directions
	l := newLink(t, 1)
	l.redirect(t, 1, link.XDPDriverMode, 0)
	from := l.ends[0].open(t, Config{Mode: Copy, RxFrames: frames, TxFrames: frames})
	to := l.ends[1].open(t, Config{Mode: Copy, RxFrames: frames, TxFrames: frames})
	for _, s := range []*Socket{from, to} {
		if got := pageSizeAt(t, addressOf(s.umem)); (got == hugePage) != s.Features().HugePages {
			t.Errorf("got pages of %d bytes and the feature HugePages %v, want %v", got, s.Features().HugePages, (got == hugePage))
		}
	}
	t.Logf("huge pages: %v", from.Features().HugePages)
	batch := make([]Desc, frames)
	if n := from.Reserve(batch); n != frames {
		t.Fatalf("%d frames to send", n)
	}
	for i := range batch {
		batch[i].Len = 1514
		l.number(from.Frame(batch[i]), uint64(i))
	}
	var next uint64
	for sent := 0; sent < frames; {
		sent += from.Submit(batch[sent:min(sent+64, frames)])
		expect.NoError(t, from.WakeTx())
		await(t, to, "the frames", func() bool {
			got := make([]Desc, 64)
			got = got[:to.Receive(got)]
			for _, d := range got {
				if n := numberOf(t, to.Frame(d)); n != next {
					t.Fatalf("frame %d, want %d", n, next)
				}
				next++
			}
			to.Refill(got)
			expect.NoError(t, to.WakeRx())
			return next == uint64(sent)
		})
	}
}

// pageSizeAt returns the size of the pages of the mapping at an address, by /proc/PID/smaps.
func pageSizeAt(t *testing.T, at uint64) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	expect.NoError(t, err)
	inside := false
	for line := range strings.Lines(string(text)) {
		var first, end uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &first, &end); n == 2 {
			inside = first <= at && at < end
		}
		var kib int
		if n, _ := fmt.Sscanf(line, "KernelPageSize: %d kB", &kib); inside && n == 1 {
			return kib << 10
		}
	}
	t.Fatalf("no mapping at %#x", at)
	return 0
}
