// SPDX-License-Identifier: Apache-2.0

package offload

// flowTable maps a flow to its open train: at most one per flow. It is set-associative and bounded, as the GRO tables
// of NICs and the kernel are. When a set is full its oldest train is closed, which costs a merge but never the order.
type flowTable struct {
	slots [tableSets * tableWays]flowSlot
	open  int
}

const (
	tableSetBits = 4
	tableSets    = 1 << tableSetBits
	tableWays    = 4
)

// flowSlot holds one open train. The zero value is free.
type flowSlot struct {
	tag   uint32
	train int32 // index in the Merger, plus one
}

// set returns the first slot of a tag's set.
func (t *flowTable) set(tag uint32) int { return int(tag>>(32-tableSetBits)) * tableWays }

// find returns the index of the open train of the packet's flow, or none.
func (m *Merger) find(l layout, pkt []byte) int32 {
	if m.last != none {
		// Packets arrive in trains: most belong to the train of the previous packet.
		if e := &m.trains[m.last]; e.slot >= 0 && e.kind == l.kind && l.sameFlow(e.pkt, pkt) {
			return m.last
		}
	}
	if m.flows.open == 0 {
		return none
	}
	tag := l.tag(pkt)
	at := m.flows.set(tag)
	for _, s := range m.flows.slots[at : at+tableWays] {
		if s.train == 0 || s.tag != tag {
			continue
		}
		if e := &m.trains[s.train-1]; e.kind == l.kind && l.sameFlow(e.pkt, pkt) {
			m.last = s.train - 1
			return m.last
		}
	}
	return none
}

// track puts open train i into the flow table, so that find returns it for its flow.
func (m *Merger) track(i int32) {
	e := &m.trains[i]
	tag := e.tag(e.pkt)
	first := m.flows.set(tag)
	victim := first
	for at := first; at < first+tableWays; at++ {
		if m.flows.slots[at].train < m.flows.slots[victim].train {
			victim = at
		}
	}
	if old := m.flows.slots[victim].train; old != 0 {
		m.close(&m.trains[old-1])
	}
	m.flows.slots[victim] = flowSlot{tag, i + 1}
	m.flows.open++
	e.slot = int32(victim)
	m.last = i
}

// close prevents packets from joining e.
func (m *Merger) close(e *mergedTrain) {
	if e.slot >= 0 {
		m.flows.slots[e.slot] = flowSlot{}
		m.flows.open--
		e.slot = none
	}
}

// closeHostPair closes all trains between the two hosts of an opaque packet, in its direction. It closes all trains
// if the packet has no readable addresses.
func (m *Merger) closeHostPair(pkt []byte) {
	if m.flows.open == 0 {
		return
	}
	v6 := len(pkt) >= 40 && pkt[0]>>4 == 6
	v4 := len(pkt) >= 20 && pkt[0]>>4 == 4
	for i := range m.flows.slots {
		s := &m.flows.slots[i]
		if s.train == 0 {
			continue
		}
		e := &m.trains[s.train-1]
		if !v4 && !v6 || e.kind.v6() == v6 && samePair(e.pkt, pkt, v6) {
			m.close(e)
		}
	}
}

// reset removes all flows.
func (t *flowTable) reset() {
	if t.open != 0 {
		*t = flowTable{}
	}
}
