// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

// The operation qstats-get of the kernel's generic netlink family "netdev", since Linux 6.10 (include/uapi/linux/netdev.h).
const (
	cmdQstatsGet    = 12 // NETDEV_CMD_QSTATS_GET
	qstatsIfindex   = 1  // NETDEV_A_QSTATS_…
	qstatsQueueType = 2
	qstatsQueueID   = 3
	qstatsScope     = 4
	qstatsRxPackets = 8
	qstatsRxBytes   = 9
	qstatsTxPackets = 10
	qstatsTxBytes   = 11

	scopeQueue = 1 // NETDEV_QSTATS_SCOPE_QUEUE
	typeRx     = 0 // NETDEV_QUEUE_TYPE_RX
)

// queueStats reads the kernel's queue statistics, nil if the kernel or the driver does not support them.
func queueStats(device string) map[int]*top.QueueCounters {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return nil
	}
	messages, err := dumpQueueStats()
	if err != nil {
		return nil
	}
	queues := map[int]*top.QueueCounters{}
	for _, m := range messages { // of all devices: not every kernel can filter by device
		addQueueStats(queues, link.Index, m.Data)
	}
	return queues
}

func dumpQueueStats() ([]genetlink.Message, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	family, err := conn.GetFamily("netdev")
	if err != nil {
		return nil, err
	}
	request := netlink.NewAttributeEncoder()
	request.Uint32(qstatsScope, scopeQueue)
	data, err := request.Encode()
	if err != nil {
		return nil, err
	}
	header := genetlink.Header{Command: cmdQstatsGet, Version: 1}
	return conn.Execute(genetlink.Message{Header: header, Data: data}, family.ID, netlink.Request|netlink.Dump)
}

// addQueueStats reads the attributes of one message if it is about a queue of the device.
func addQueueStats(queues map[int]*top.QueueCounters, device int, message []byte) {
	values := integers(message)
	queue, known := values[qstatsQueueID]
	if !known || queue >= maxQueue || values[qstatsIfindex] != uint64(device) {
		return
	}
	q := at(queues, int(queue))
	if values[qstatsQueueType] == typeRx {
		_, counts := values[qstatsRxPackets]
		q.Rx = top.PacketCounters{Packets: values[qstatsRxPackets], Bytes: values[qstatsRxBytes], Known: counts}
		return
	}
	_, counts := values[qstatsTxPackets]
	q.Tx = top.PacketCounters{Packets: values[qstatsTxPackets], Bytes: values[qstatsTxBytes], Known: counts}
}

// integers returns the attributes that are integers of 4 or 8 bytes, which are the two lengths of a netlink uint.
func integers(attributes []byte) map[uint16]uint64 {
	values := map[uint16]uint64{}
	d, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return values
	}
	for d.Next() {
		switch len(d.Bytes()) {
		case 4:
			values[d.Type()] = uint64(d.Uint32())
		case 8:
			values[d.Type()] = d.Uint64()
		}
	}
	return values
}
