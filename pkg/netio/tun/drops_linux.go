// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"sync/atomic"

	"github.com/vishvananda/netlink"
)

// queueDrops is the kernel's counter of what a full queue refused (tx_dropped). It belongs to the interface, which may be older than the
// Device.
type queueDrops struct {
	before uint64
	now    atomic.Uint64
}

func (q *queueDrops) start(m *monitor) {
	q.update(m)
	q.before = q.now.Load()
}

// update reads the counter. Without the privilege to enter the interface's namespace it stays as it is: a counter that decreases breaks graphs.
func (q *queueDrops) update(m *monitor) {
	at, err := m.locate()
	if err != nil {
		return
	}
	defer at.close()
	at.run(func() {
		if l, err := netlink.LinkByName(at.name); err == nil && l.Attrs().Statistics != nil {
			q.now.Store(l.Attrs().Statistics.TxDropped)
		}
	})
}

// QueueDrops implements DropCounter.
func (d *device) QueueDrops() uint64 {
	d.drops.update(d.monitor)
	return d.drops.now.Load() - d.drops.before
}
