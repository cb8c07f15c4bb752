// SPDX-License-Identifier: Apache-2.0

package offload

// flowTable finds the open element of a flow: at most one each. It is set-associative, as a NIC's and the kernel's GRO
// tables are bounded too: where a set is full its oldest element is closed, which costs a merge and never the order.
type flowTable struct {
	slots [tableSets * tableWays]flowSlot
	open  int
}

const (
	tableSetBits = 4
	tableSets    = 1 << tableSetBits
	tableWays    = 4
)

// flowSlot holds one open element. The zero value is free.
type flowSlot struct {
	tag     uint32
	element int32 // index in the Merger, plus one
}

// set returns where the slots of a tag's set start.
func (t *flowTable) set(tag uint32) int { return int(tag>>(32-tableSetBits)) * tableWays }

// find returns the index of the open element of the packet's flow, or none.
func (m *Merger) find(l layout, pkt []byte) int32 {
	if m.last != none {
		// Packets come in trains: most belong to the element of the one before.
		if e := &m.elements[m.last]; e.slot >= 0 && e.kind == l.kind && l.sameFlow(e.pkt, pkt) {
			return m.last
		}
	}
	if m.flows.open == 0 {
		return none
	}
	tag := l.tag(pkt)
	at := m.flows.set(tag)
	for _, s := range m.flows.slots[at : at+tableWays] {
		if s.element == 0 || s.tag != tag {
			continue
		}
		if e := &m.elements[s.element-1]; e.kind == l.kind && l.sameFlow(e.pkt, pkt) {
			m.last = s.element - 1
			return m.last
		}
	}
	return none
}

// hold makes element i, which is open, the one that find returns for its flow.
func (m *Merger) hold(i int32) {
	e := &m.elements[i]
	tag := e.tag(e.pkt)
	first := m.flows.set(tag)
	victim := first
	for at := first; at < first+tableWays; at++ {
		if m.flows.slots[at].element < m.flows.slots[victim].element {
			victim = at
		}
	}
	if old := m.flows.slots[victim].element; old != 0 {
		m.close(&m.elements[old-1])
	}
	m.flows.slots[victim] = flowSlot{tag, i + 1}
	m.flows.open++
	e.slot = int32(victim)
	m.last = i
}

// close lets nothing more join e.
func (m *Merger) close(e *element) {
	if e.slot >= 0 {
		m.flows.slots[e.slot] = flowSlot{}
		m.flows.open--
		e.slot = none
	}
}

// closePair closes all elements between the two hosts of an opaque packet, in its direction; all there are if it does
// not even show its hosts.
func (m *Merger) closePair(pkt []byte) {
	if m.flows.open == 0 {
		return
	}
	v6 := len(pkt) >= 40 && pkt[0]>>4 == 6
	v4 := len(pkt) >= 20 && pkt[0]>>4 == 4
	for i := range m.flows.slots {
		s := &m.flows.slots[i]
		if s.element == 0 {
			continue
		}
		e := &m.elements[s.element-1]
		if !v4 && !v6 || e.kind.v6() == v6 && samePair(e.pkt, pkt, v6) {
			m.close(e)
		}
	}
}

// reset forgets all flows.
func (t *flowTable) reset() {
	if t.open != 0 {
		*t = flowTable{}
	}
}
