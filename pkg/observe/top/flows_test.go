// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/golden"
)

const second = int64(1e9)

// flowsAfter returns a report after n seconds of constant traffic of several flows.
func flowsAfter(n uint64) *device.FlowReport {
	now := (int64(n) + 100) * second
	r := &device.FlowReport{Interface: "wg0", Lanes: 2, Now: now, Since: 100 * second}
	for i := range uint64(4) {
		r.Flows = append(r.Flows, device.Flow{
			FlowID: device.FlowID{
				Direction: []string{"tx", "rx"}[i%2], Peer: fmt.Sprintf("%05dPEERKEYPEERKEYPEERKEYPEERKEYPEERKEYPEER=", i/2), Protocol: "tcp",
				Source: fmt.Sprintf("10.0.0.%d:50000", i+1), Destination: "10.0.1.1:443",
			},
			Lane: int(i % 3), OuterPort: uint16(61000 + i), Packets: n * 1000 * (i + 1), Bytes: n * 1.4e6 * (i + 1), Marks: n * i, Drops: n * (i / 3),
			First: 100 * second, Last: now,
		})
	}
	r.Flows[1].Protocol, r.Flows[1].Source, r.Flows[1].Destination = "ipv6-icmp", "2001:db8:aaaa:bbbb::1", "2001:db8:cccc:dddd::1"
	r.Flows[2].Last = 98 * second
	r.Flows = append(r.Flows, device.Flow{
		FlowID: device.FlowID{Direction: "rx", Peer: "00009PEER"}, OuterPort: 61009, Drops: 5 * n, First: 101 * second, Last: now,
	})
	return r
}

func TestFlowTablesMatchGoldenFiles(t *testing.T) {
	flows := CompareFlows(flowsAfter(1), flowsAfter(3))
	SortFlows(flows, "rate")
	for _, width := range []int{200, 120, 80, 40} {
		text := RenderFlows(flows, Options{Width: width})
		checkScreen(t, text, Options{Width: width})
		golden.Check(t, fmt.Sprintf("testdata/flowtable-%d.golden", width), text)
	}
	golden.Check(t, "testdata/flowtable-none.golden", RenderFlows(nil, Options{Width: 80}))
}

func TestCompareFlowsComputesRates(t *testing.T) {
	restarted, replaced := flowsAfter(3), flowsAfter(1)
	restarted.Since = 102 * second
	replaced.Flows[0].First = 99 * second
	for name, tt := range map[string]struct {
		before, now       *device.FlowReport
		bytes, packets    float64 // rates of flow 0
		dropped, unopened float64
	}{
		"two reports":       {flowsAfter(1), flowsAfter(3), 1.4e6, 1000, 1, 5},
		"one report":        {nil, flowsAfter(2), 1.4e6, 1000, 1, 5},
		"counting restarts": {flowsAfter(1), restarted, 4.2e6, 3000, 3, 15},
		"entry was lost":    {replaced, flowsAfter(3), 2.1e6, 1500, 1, 5},
	} {
		f := CompareFlows(tt.before, tt.now)
		if f[0].ByteRate != tt.bytes || f[0].PacketRate != tt.packets || f[3].DropRate != tt.dropped || f[4].DropRate != tt.unopened {
			t.Errorf("%s: got %+v", name, f)
		}
	}
	f := CompareFlows(nil, flowsAfter(3))
	if f[0].Age != 3 || f[0].Idle != 0 || f[2].Idle != 5 || f[1].Lane != "1" || f[2].Lane != slowLane {
		t.Errorf("got %+v", f)
	}
}

func TestSortFlowsOrdersRows(t *testing.T) {
	flows := []InnerFlow{
		{FlowID: device.FlowID{Source: "a"}, ByteRate: 1, Age: 3},
		{FlowID: device.FlowID{Source: "b"}, ByteRate: 2, Drops: 7},
		{FlowID: device.FlowID{Source: "c"}, ByteRate: 2, DropRate: 1},
	}
	for order, want := range map[string]string{"rate": "bca", "age": "abc", "drops": "cba"} {
		SortFlows(flows, order)
		if got := flows[0].Source + flows[1].Source + flows[2].Source; got != want {
			t.Errorf("by %s: got %s, want %s", order, got, want)
		}
	}
}

func TestFlowsAreOnlyInTheirView(t *testing.T) {
	f := between(tunnel(1, 2, 2), tunnel(2, 2, 2))
	for v := Overview; v <= Help; v++ {
		text := f.Render(Options{Width: 120, View: v})
		if shown := strings.Contains(text, "10.0.1.1"); shown != (v == Flows) {
			t.Errorf("%s: addresses are shown: %v", v, shown)
		}
	}
}
