// SPDX-License-Identifier: Apache-2.0

package fqcodel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// train is an element of the tests: packets of a flow.
type train struct {
	id, packets int
	flow        uint32
}

// model is what a queue must contain. It checks what comes out.
type model struct {
	*testing.T
	q       *Queue[train]
	flows   map[uint32][]train
	size    map[int]int // bytes of the elements inside, by id
	bytes   int
	ids     int
	signals int
}

// remove checks that e is the oldest element of its flow, and removes it.
func (m *model) remove(by string, e train) {
	m.Helper()
	f := m.flows[e.flow]
	if len(f) == 0 || f[0].id != e.id {
		m.Fatalf("%s returns element %d of flow %d, which has %v", by, e.id, e.flow, f)
	}
	m.flows[e.flow] = f[1:]
	m.bytes -= m.size[e.id]
	delete(m.size, e.id)
}

// flowBytes returns the bytes of a flow.
func (m *model) flowBytes(flow uint32) (n int) {
	for _, e := range m.flows[flow] {
		n += m.size[e.id]
	}
	return n
}

func (m *model) push(rnd *rand.Rand, now int64) {
	hash, bytes := rnd.Uint32(), 1+rnd.IntN(65536)
	e := train{m.ids, 1 + rnd.IntN(3), hash % uint32(len(m.q.flows))}
	m.ids++
	m.flows[e.flow] = append(m.flows[e.flow], e)
	m.size[e.id] = bytes
	m.bytes += bytes
	m.q.Push(hash, e, bytes, now)
}

func (m *model) pop(now int64) bool {
	e, _, ok := m.q.Pop(now)
	if ok {
		m.remove("Pop", e)
	} else if len(m.size) != 0 {
		m.Fatalf("Pop returns nothing of %d elements", len(m.size))
	}
	return ok
}

func (m *model) popFattest() {
	most := 0
	for flow := range m.flows {
		most = max(most, m.flowBytes(flow))
	}
	e, ok := m.q.PopFattest()
	if ok != (most > 0) {
		m.Fatalf("PopFattest returns %v, the largest flow has %d bytes", ok, most)
	}
	if !ok {
		return
	}
	if n := m.flowBytes(e.flow); n != most {
		m.Fatalf("PopFattest takes from a flow with %d bytes, another one has %d", n, most)
	}
	m.remove("PopFattest", e)
}

// signal drops a packet, or marks it if its number is even.
func (m *model) signal(e *train) bool {
	m.signals++
	if e.id%2 == 0 {
		return false
	}
	if e.packets--; e.packets > 0 {
		return false
	}
	m.remove("Signal", *e)
	return true
}

// check compares sizes.
func (m *model) check() {
	if m.q.Len() != len(m.size) || m.q.bytes != m.bytes {
		m.Fatalf("%d elements, %d bytes; want %d, %d", m.q.Len(), m.q.bytes, len(m.size), m.bytes)
	}
	if full := len(m.size) == m.q.cfg.Elements || m.bytes >= m.q.cfg.Bytes; m.q.Full() != full {
		m.Fatalf("Full is %v with %d elements, %d bytes", m.q.Full(), len(m.size), m.bytes)
	}
}

// newModel returns a model of an empty queue.
func newModel(t *testing.T, flows, elements, bytes int) *model {
	m := &model{T: t, flows: map[uint32][]train{}, size: map[int]int{}}
	m.q = New(Config[train]{
		Params: internet, Flows: flows, Quantum: 16 << 10, Elements: elements, Bytes: bytes, Signal: m.signal,
	})
	return m
}

// TestIdleQueueTouchesLittleMemory uses a queue that is never longer than one element.
func TestIdleQueueTouchesLittleMemory(t *testing.T) {
	m := newModel(t, 16, 1000, 1<<20)
	rnd := rand.New(rand.NewPCG(8290, 0))
	for range 100 {
		m.push(rnd, 1)
		m.pop(1)
	}
	if m.q.unused != 1 {
		t.Errorf("%d nodes were used for one element at a time", m.q.unused)
	}
}

func TestElementsLeaveOnceAndInOrder(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(8290, seed))
		m := newModel(t, 1<<rnd.IntN(5), 1+rnd.IntN(100), 1+rnd.IntN(4<<20))
		now, pushes := int64(1), 5
		for step := range 20_000 {
			if step%500 == 0 {
				pushes = 2 + rnd.IntN(7)
			}
			now += int64(rnd.ExpFloat64() * float64(3*time.Millisecond))
			switch op := rnd.IntN(10); {
			case op < pushes && !m.q.Full():
				m.push(rnd, now)
			case op < pushes || rnd.IntN(50) == 0:
				m.popFattest()
			default:
				m.pop(now)
			}
			m.check()
		}
		for m.pop(now) {
			m.check()
		}
		if m.ids < 1000 || m.signals == 0 && m.q.cfg.Elements > 20 && m.q.cfg.Bytes > 1<<20 {
			t.Errorf("seed %d: only %d elements and %d signals", seed, m.ids, m.signals)
		}
		for !m.q.Full() { // no node was lost
			m.push(rnd, now)
		}
		m.check()
	}
}

func TestFullHonoursBothBounds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, tt := range []struct{ elements, bytes, size, room int }{
		{10, 1 << 20, 64, 10},
		{1000, 1 << 20, 64 << 10, 16},
		{1000, 1<<20 + 1, 64 << 10, 17},
		{1, 1, 1, 1},
	} {
		m := newModel(t, 4, tt.elements, tt.bytes)
		for range 3 {
			n := m.q.Len()
			for ; !m.q.Full(); n++ {
				m.q.Push(rnd.Uint32(), train{}, tt.size, 1)
			}
			if n != tt.room {
				t.Errorf("%+v: full with %d elements", tt, n)
			}
			m.q.PopFattest()
		}
	}
}

func TestPopFattestTakesOldestOfLargestFlow(t *testing.T) {
	m := newModel(t, 4, 16, 1<<20)
	for id, e := range []struct {
		flow  uint32
		bytes int
	}{{0, 1000}, {1, 2000}, {2, 500}, {1, 1000}, {0, 1500}, {2, 600}} {
		m.q.Push(e.flow, train{id: id}, e.bytes, 1)
	}
	var ids []int
	for {
		e, ok := m.q.PopFattest()
		if !ok {
			break
		}
		ids = append(ids, e.id)
	}
	// 2500, 3000, 1100 bytes; then 2500, 1000, 1100; 1500, 1000, 1100; 0, 1000, 1100; 0, 1000, 600; 0, 0, 600.
	if want := []int{1, 0, 4, 2, 3, 5}; !slices.Equal(ids, want) {
		t.Errorf("order %v, want %v", ids, want)
	}
	if _, _, ok := m.q.Pop(1); ok || m.q.Len() != 0 || m.q.bytes != 0 {
		t.Error("queue not empty")
	}
}

func TestQueueKeepsNoReferences(t *testing.T) {
	left := 0
	q := New(Config[*int]{
		Params: internet, Flows: 4, Quantum: 1500, Elements: 16, Bytes: 1 << 20,
		Signal: func(**int) bool { left++; return true },
	})
	for i := range uint32(16) {
		q.Push(i%2, new(int), 1500, 1)
	}
	for _, at := range []time.Duration{1, 2, 3, 4} {
		q.Pop(int64(at * time.Second))
	}
	for ok := true; ok; {
		_, ok = q.PopFattest()
	}
	for i := range q.nodes {
		if q.nodes[i].value != nil {
			t.Errorf("node %d refers to an element that has left", i)
		}
	}
	if left == 0 {
		t.Error("no element has left by Signal")
	}
}

func TestNewRejectsInvalidSizes(t *testing.T) {
	for _, tt := range []struct{ flows, quantum, elements, bytes int }{
		{0, 1, 1, 1}, {3, 1, 1, 1}, {-4, 1, 1, 1}, {4, 0, 1, 1}, {4, maxSize + 1, 1, 1}, {4, 1, 0, 1}, {4, 1, 1, 0},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("New does not panic")
				}
			}()
			New(Config[int]{Flows: tt.flows, Quantum: tt.quantum, Elements: tt.elements, Bytes: tt.bytes})
		})
	}
}

func TestQueueDoesNotAllocate(t *testing.T) {
	signals := 0
	q := New(Config[train]{
		Params: internet, Flows: 64, Quantum: 1500, Elements: 256, Bytes: 1 << 30,
		Signal: func(e *train) bool { signals++; return e.packets&1 == 0 },
	})
	now, n := int64(1), 0
	allocs := testing.AllocsPerRun(1000, func() {
		for !q.Full() {
			n++
			q.Push(uint32(n*n), train{packets: n}, 1500, now)
		}
		for range 64 {
			now += int64(time.Millisecond)
			q.Pop(now)
			q.PopFattest()
		}
	})
	if allocs != 0 || signals == 0 {
		t.Errorf("%v allocations, %d signals", allocs, signals)
	}
}

func BenchmarkPushPop(b *testing.B) {
	for _, flows := range []int{1, 64, 1000} {
		b.Run(fmt.Sprintf("flows=%d", flows), func(b *testing.B) {
			q := New(Config[[20]uint64]{
				Params: internet, Flows: 1024, Quantum: 16 << 10, Elements: 4096, Bytes: 1 << 30,
				Signal: func(*[20]uint64) bool { return false },
			})
			now := int64(1)
			for i := range uint32(2 * flows) {
				q.Push(i%uint32(flows), [20]uint64{uint64(i) % uint64(flows)}, 1500, now)
			}
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				e, _, _ := q.Pop(now)
				q.Push(uint32(e[0]), e, 1500, now)
			}
		})
	}
}

func TestBlockedFlowsAreSetAside(t *testing.T) {
	blocked := map[uint32]bool{1: true}
	type element struct{ flow, n uint32 }
	q := New(Config[element]{
		Params: Params{Target: time.Hour, Interval: time.Hour, MTU: 1500},
		Flows:  8, Quantum: 1500, Elements: 64, Bytes: 1 << 20,
		Signal:  func(*element) bool { return false },
		Blocked: func(e *element) bool { return blocked[e.flow] },
	})
	for n := range uint32(5) {
		for flow := range uint32(3) {
			q.Push(flow, element{flow, n}, 1000, 1)
		}
	}
	pop := func() (counts [3]uint32) {
		for {
			e, _, ok := q.Pop(2)
			if !ok {
				return counts
			}
			if blocked[e.flow] {
				t.Errorf("blocked flow %d sends", e.flow)
			}
			counts[e.flow]++
		}
	}
	if got := pop(); got != [3]uint32{5, 0, 5} || q.Len() != 5 || q.Ready() {
		t.Errorf("%v were popped, %d are left, ready: %v; want 5, 0, 5, and 5 that are not", got, q.Len(), q.Ready())
	}
	if b := q.Backlog(1); b != 5000 {
		t.Errorf("the blocked flow has %d bytes, want 5000", b)
	}
	q.Push(1, element{1, 5}, 1000, 3)
	if q.Ready() {
		t.Error("an element that joins a blocked flow makes it ready")
	}
	q.Resume()
	if got := pop(); got != [3]uint32{} {
		t.Errorf("%v were popped while the flow is blocked", got)
	}
	blocked[1] = false
	q.Resume()
	for n := range uint32(6) {
		if e, _, ok := q.Pop(4); !ok || e.n != n {
			t.Errorf("popped element %d (%v), want %d", e.n, ok, n)
		}
	}
}

// TestSmallElementsHaveTheirParameters lets two flows stand for 15 ms, one of small elements and one of large ones.
func TestSmallElementsHaveTheirParameters(t *testing.T) {
	signals := map[uint32]int{}
	q := New(Config[train]{
		Params: Params{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond, MTU: 1500},
		Small:  &Params{Target: time.Millisecond, Interval: 10 * time.Millisecond, MTU: 1500}, SmallSize: 4096,
		Flows: 2, Quantum: 1500, Elements: 100, Bytes: 1 << 20,
		Signal: func(e *train) bool {
			signals[e.flow]++
			return false
		},
	})
	for id := range 40 {
		q.Push(0, train{id, 1, 0}, 4096, 1)
		q.Push(1, train{id, 1, 1}, 4097, 1)
	}
	for now := time.Duration(1); now <= 15*time.Millisecond; now += time.Millisecond {
		q.Pop(int64(now))
		q.Pop(int64(now))
	}
	if signals[0] == 0 || signals[1] != 0 {
		t.Errorf("small elements had %d signals, large ones %d", signals[0], signals[1])
	}
}
