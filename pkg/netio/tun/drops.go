// SPDX-License-Identifier: Apache-2.0

package tun

// QueueDrops implements DropCounter. It asks the monitor, which knows where the interface is. After Close it returns the last known value.
func (d *device) QueueDrops() uint64 { return d.monitor.queueDrops() }

// queueDrops returns the kernel's counter of the interface (tx_dropped). Any goroutine may call it, also after close.
func (m *monitor) queueDrops() uint64 {
	answer := make(chan uint64, 1)
	select {
	case m.dropQueries <- answer:
		return <-answer
	case <-m.ended:
		return m.drops
	}
}

// updateDrops reads the counter. Without the privilege to enter the interface's namespace it stays as it is: a counter that decreases
// breaks graphs. l is nil while the interface is in another namespace.
func (m *monitor) updateDrops(l *link) uint64 {
	if l == nil {
		at, err := m.locate()
		if err != nil {
			return m.drops
		}
		defer at.close()
		if l, err = openLink(&at.ns, at.name); err != nil {
			return m.drops
		}
		defer l.close()
	}
	if n, err := l.queueDrops(); err == nil {
		m.drops = max(m.drops, n)
	}
	return m.drops
}

// queueDrops returns the number of packets and trains that the kernel has dropped in front of the queues since the interface was created.
func (l *link) queueDrops() (uint64, error) {
	found, err := l.handle.LinkByIndex(l.index)
	if err != nil || found.Attrs().Statistics == nil {
		return 0, err
	}
	return found.Attrs().Statistics.TxDropped, nil
}
