// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// BenchmarkClassify measures the cost of a packet for each outcome. BenchmarkEmptyProgram measures the overhead.
func BenchmarkClassify(b *testing.B) {
	ample := RateLimit{Interval: time.Nanosecond, Burst: 1}
	base := ClassifyOptions{SourceLimit: ample, TotalLimit: ample, MaxFrame: 1514}
	with := func(change func(*ClassifyOptions)) ClassifyOptions {
		o := base
		change(&o)
		return o
	}
	checked := with(func(o *ClassifyOptions) { o.CheckIndices = true })
	v4, v6 := toHost(false, unchanged), toHost(true, unchanged)
	for _, bb := range []struct {
		name   string
		o      ClassifyOptions
		in     []byte
		socket bool
		known  bool // whether the receiver index and the source are known
	}{
		{"not UDP", base, set(v4, 14+9, 6), true, false},
		{"UDP of others", base, data(them4, from(us4, 51819)).bytes(), true, false},
		{"another's address", base, data(them4, from("198.51.100.9:1", 51820)).bytes(), true, false},
		{"data to a socket", base, v4, true, false},
		{"v6 data to a socket", base, v6, true, false},
		{"data to a socket, index checked", checked, v4, true, true},
		{"data without a socket", base, v4, false, false},
		{"data of an unknown index", checked, v4, true, false},
		{"keepalive", base, toHost(false, withPayload(message(4, 32))), true, false},
		{"response", base, toHost(false, withPayload(message(2, 92))), true, false},
		{"initiation, unguarded", with(func(o *ClassifyOptions) { o.SourceLimit, o.TotalLimit = RateLimit{}, RateLimit{} }), toHost(false, withPayload(initiation())), true, false},
		{"initiation of a source seen", base, toHost(false, withPayload(initiation())), true, false},
		{"initiation of a known source", base, toHost(false, withPayload(initiation())), true, true},
		{"initiation beyond its source's limit", with(func(o *ClassifyOptions) { o.SourceLimit = limitOf(1) }), toHost(false, withPayload(initiation())), true, false},
		{"initiation beyond the CPU's limit", with(func(o *ClassifyOptions) { o.SourceLimit, o.TotalLimit = RateLimit{}, limitOf(1) }), toHost(false, withPayload(initiation())), true, false},
	} {
		b.Run(bb.name, func(b *testing.B) {
			c := newClassify(b, bb.o)
			if bb.socket {
				defer unix.Close(addSocket(b, c, 0))
			}
			if bb.known {
				expect.NoError(b, c.AddIndex(binary.LittleEndian.Uint32(message(4, 96)[4:])))
				expect.NoError(b, c.AddPeerSource(netip.MustParseAddrPort(them4)))
			}
			repeatRun(b, c.program, bb.in)
		})
	}
	b.Run("initiation of a new source", func(b *testing.B) {
		c := newClassify(b, base)
		b.ReportMetric(newSources(b, c)+repeatRun(b, c.program, v4)-singleRuns(b, c.program, v4), "ns/packet")
	})
}

// newSources returns the cost of initiations from new sources while the map is full, by the kernel's run-time statistics.
func newSources(b *testing.B, c *Classify) float64 {
	b.Helper()
	send := func(net, n int) {
		for i := range n {
			verdict, err := c.program.Run(&ebpf.RunOptions{Data: initiationFrom(fmt.Sprintf("10.%d.%d.%d", net, i>>8, i&0xff))})
			if err != nil || verdict != xdpPass {
				b.Fatalf("got verdict %d, error %v, want %d, no error", verdict, err, xdpPass)
			}
		}
	}
	send(1, ClassifySources)
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Skipf("needs BPF_ENABLE_STATS: %v", err)
	}
	defer stats.Close()
	before, err := c.program.Stats()
	expect.NoError(b, err)
	send(2, 10000)
	after, err := c.program.Stats()
	expect.NoError(b, err)
	return float64(after.Runtime-before.Runtime) / float64(after.RunCount-before.RunCount)
}
