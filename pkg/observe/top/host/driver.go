// SPDX-License-Identifier: Apache-2.0

package host

import (
	"regexp"
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

// driverName matches direction, queue and unit in the names of drivers' per-queue counters:
//
//	rx_queue_0_packets rx0_packets rx-0.packets rx_0_packets   virtio_net, ixgbe, igb, ice, mlx5, i40e, mlx4
//	queue_0_rx_cnt queue_0_rx_bytes                            ena
//	rx_packets[0] rx_bytes[0]                                  gve
//	[0]: rx_ucast_packets [0]: rx_ucast_bytes                  bnxt
type driverName struct {
	*regexp.Regexp
	direction, queue, unit int // groups
}

func driverNames() []driverName {
	return []driverName{
		{regexp.MustCompile(`^(rx|tx)(?:_queue_|_|-|)(\d{1,4})[_.](packets|bytes)$`), 1, 2, 3},
		{regexp.MustCompile(`^queue_(\d{1,4})_(rx|tx)_(cnt|bytes)$`), 2, 1, 3},
		{regexp.MustCompile(`^(rx|tx)_(packets|bytes)\[(\d{1,4})\]$`), 1, 3, 2},
		{regexp.MustCompile(`^\[(\d{1,4})\]: (rx|tx)_ucast_(packets|bytes)$`), 2, 1, 3},
	}
}

// queuesIn extracts the queue counters from a driver's statistics.
func queuesIn(stats map[string]uint64) map[int]*top.QueueCounters {
	queues := map[int]*top.QueueCounters{}
	names := driverNames()
	for name, value := range stats {
		for _, form := range names {
			m := form.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			queue, err := strconv.Atoi(m[form.queue])
			if err == nil && queue < maxQueue {
				store(at(queues, queue), m[form.direction], m[form.unit], value)
			}
			break
		}
	}
	return queues
}

func store(q *top.QueueCounters, direction, unit string, value uint64) {
	c := &q.Rx
	if direction == "tx" {
		c = &q.Tx
	}
	if unit == "bytes" {
		c.Bytes = value
		return
	}
	c.Packets, c.Known = value, true
}
