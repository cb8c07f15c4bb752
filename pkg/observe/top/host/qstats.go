// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

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
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return nil
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_DUMP)
	req.AddData(genericHeader{cmdQstatsGet, 1})
	req.AddData(nl.NewRtAttr(qstatsScope, nl.Uint32Attr(scopeQueue)))
	messages, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil
	}
	queues := map[int]*top.QueueCounters{}
	for _, m := range messages { // of all devices: not every kernel can filter by device
		addQueueStats(queues, link.Index, m)
	}
	return queues
}

// genericHeader is struct genlmsghdr: command, version, and two reserved bytes that must be 0. nl.Genlmsg does not always clear them.
type genericHeader [nl.SizeofGenlmsg]byte

// Len implements nl.NetlinkRequestData.
func (genericHeader) Len() int { return nl.SizeofGenlmsg }

// Serialize implements nl.NetlinkRequestData.
func (h genericHeader) Serialize() []byte { return h[:] }

// addQueueStats reads one message, a generic netlink header and attributes, if it is about a queue of the device.
func addQueueStats(queues map[int]*top.QueueCounters, device int, message []byte) {
	values := attributes(message[min(nl.SizeofGenlmsg, len(message)):])
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

// attributes returns the integer attributes. Each begins with its length, without the padding to 4 bytes, and its type.
func attributes(b []byte) map[uint16]uint64 {
	values := map[uint16]uint64{}
	for len(b) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofNlAttr || length > len(b) {
			break
		}
		if v, ok := number(b[unix.SizeofNlAttr:length]); ok {
			values[binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK] = v
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return values
}

// number reads a netlink uint of 4 or 8 bytes.
func number(b []byte) (uint64, bool) {
	switch len(b) {
	case 4:
		return uint64(binary.NativeEndian.Uint32(b)), true
	case 8:
		return binary.NativeEndian.Uint64(b), true
	}
	return 0, false
}
