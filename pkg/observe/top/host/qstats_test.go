// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

// qstats is a message of device 2.
func qstats(attrs ...*nl.RtAttr) []byte {
	b := nl.NewRtAttr(qstatsIfindex, nl.Uint32Attr(2)).Serialize()
	for _, a := range attrs {
		b = append(b, a.Serialize()...)
	}
	return b
}

func TestKernelQueueStatsAreParsed(t *testing.T) {
	u32 := func(kind int, v uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(v)) }
	u64 := func(kind int, v uint64) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint64Attr(v)) }
	queues := map[int]*top.QueueCounters{}
	for _, m := range [][]byte{
		qstats(u32(qstatsQueueType, typeRx), u32(qstatsQueueID, 1), u64(qstatsRxPackets, 1<<40), u32(qstatsRxBytes, 7)),
		qstats(u32(qstatsQueueType, 1), u32(qstatsQueueID, 1), u32(qstatsTxPackets, 3), u64(qstatsTxBytes, 4)),
		qstats(u32(qstatsQueueType, typeRx), u32(qstatsQueueID, 2)),                   // counts nothing
		qstats(u32(qstatsQueueType, typeRx), u32(qstatsQueueID, maxQueue)),            // not believed
		qstats(u32(qstatsIfindex, 3), u32(qstatsQueueID, 1), u32(qstatsRxPackets, 5)), // of another device
		qstats(u32(qstatsRxPackets, 5)), // of the whole device
		qstats(nl.NewRtAttr(qstatsQueueID, []byte{1, 2})),
		{0, 0, 0},
		{},
		{255, 255, 1, 0},
	} {
		addQueueStats(queues, 2, m)
	}
	want := map[int]*top.QueueCounters{
		1: {Rx: top.PacketCounters{Packets: 1 << 40, Bytes: 7, Known: true}, Tx: top.PacketCounters{Packets: 3, Bytes: 4, Known: true}},
		2: {},
	}
	if diff := cmp.Diff(want, queues); diff != "" {
		t.Error(diff)
	}
}

func FuzzQueueStatistics(f *testing.F) {
	f.Add(qstats(nl.NewRtAttr(qstatsQueueID, nl.Uint32Attr(1)), nl.NewRtAttr(qstatsRxPackets, nl.Uint64Attr(9))))
	f.Add([]byte{255, 255, 1, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		queues := map[int]*top.QueueCounters{}
		addQueueStats(queues, 2, message)
		if len(queues) > 1 {
			t.Errorf("%d queues in one message", len(queues))
		}
	})
}
