// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

const tick = 1 << tickShift

// slowFlows and slowLoads say in plain structs what Flows and Loads do with packed words.
type slowFlows struct {
	gap  int64
	seen map[uint32]slowFlow // by the hash's upper bits
	bits int
}

type slowFlow struct {
	tick int64
	peer uint16
	tag  uint32
	lane int
}

type slowLoads struct {
	loads   []slowLoad
	blocked map[int]bool
}

type slowLoad struct {
	epoch int64
	bytes uint64
}

func (l *slowLoads) at(lane int, epoch int64) uint64 {
	bytes := l.loads[lane].bytes
	for e := l.loads[lane].epoch; e < epoch && bytes > 0; e++ {
		bytes /= 2
	}
	return bytes
}

func (l *slowLoads) least(epoch int64) int {
	n := len(l.loads)
	best := 5 % n
	for i := range n {
		if lane := (5 + i) % n; l.at(lane, epoch) < l.at(best, epoch) {
			best = lane
		}
	}
	return best
}

func (l *slowLoads) slot(key uint32) int {
	n := len(l.loads)
	for i := range n {
		if lane := (int(key) + i) % n; !l.blocked[lane] {
			return lane
		}
	}
	return int(key) % n
}

func (f *slowFlows) choose(l *slowLoads, flow Flow, now int64, n int) int {
	tick, epoch := now/65536, now/(1<<27)
	key := flow.Hash >> (32 - f.bits)
	last, known := f.seen[key]
	own, age := last.peer == flow.Peer && last.tag == flow.Hash%256, tick-last.tick
	var lane int
	switch {
	case known && own && age < f.gap:
		lane = last.lane
	case known && !own && age < 2*f.gap:
		lane = l.slot(key)
	default:
		lane = l.least(epoch)
	}
	if !known || own || age >= f.gap {
		f.seen[key] = slowFlow{tick, flow.Peer, flow.Hash % 256, lane}
	}
	lane %= len(l.loads)
	l.loads[lane] = slowLoad{epoch, min(l.at(lane, epoch)+uint64(n), 1<<40-1)}
	return lane
}

// twins are the real thing and its reference.
type twins struct {
	flows *Flows
	slow  slowFlows
	loads [3]*Loads // of peers 1 to 3
	plain [3]*slowLoads
	now   int64
}

func newTwins(log2 int) *twins {
	t := &twins{
		flows: NewFlows(log2, DefaultGap), now: 1 << 40,
		slow: slowFlows{gap: int64(DefaultGap) / 65536, seen: map[uint32]slowFlow{}, bits: log2},
	}
	for i, n := range []int{1, 16, MaxPorts} {
		t.loads[i], t.plain[i] = NewLoads(n, 5), &slowLoads{loads: make([]slowLoad, n)}
	}
	return t
}

// block blocks the lanes of a peer whose bits are set.
func (t *twins) block(peer int, lanes uint64) {
	t.plain[peer].blocked = map[int]bool{}
	t.loads[peer] = t.loads[peer].Blocked(func(i int) bool {
		t.plain[peer].blocked[i] = lanes>>i&1 != 0
		return lanes>>i&1 != 0
	})
}

// step lets n bytes of a flow go to one of the peers, after a pause, and compares.
func (t *twins) step(tb testing.TB, peer int, hash uint32, pause time.Duration, n int) {
	tb.Helper()
	t.now += int64(pause)
	flow := Flow{uint16(peer + 1), hash}
	got := t.flows.Choose(t.loads[peer], flow, t.now, n)
	if want := t.slow.choose(t.plain[peer], flow, t.now, n); got != want {
		tb.Fatalf("hash %#x at %d: lane %d, want %d", hash, t.now, got, want)
	}
	if got, want := t.loads[peer].Bytes(got, t.now), t.plain[peer].at(got, t.now/(1<<27)); got != want {
		tb.Fatalf("hash %#x at %d: load %d, want %d", hash, t.now, got, want)
	}
}

func TestKeptFlowDoesNotPause(t *testing.T) {
	flows, loads, now := NewFlows(8, DefaultGap), NewLoads(4, 0), int64(1<<40)
	flows.Keep(Flow{1, 7}, now) // unknown: nothing to keep
	first := flows.Choose(loads, Flow{1, 7}, now, 1000)
	for range 3 {
		now += int64(2 * DefaultGap)
		flows.Keep(Flow{1, 7}, now)
		if got := flows.Choose(loads, Flow{1, 7}, now, 1000); got != first || flows.Lane(loads, Flow{1, 7}, now) != first {
			t.Fatalf("got lane %d, and Lane %d, want %d", got, flows.Lane(loads, Flow{1, 7}, now), first)
		}
	}
	now += int64(DefaultGap)
	if got := flows.Choose(loads, Flow{1, 7}, now, 1000); got == first {
		t.Errorf("after a pause the flow is still on lane %d", got)
	}
}

func TestFlowsMatchReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, log2 := range []int{1, 5, 16, 18} {
		twins := newTwins(log2)
		hashes := make([]uint32, 100)
		for i := range hashes {
			hashes[i] = rng.Uint32()
		}
		for range 20000 {
			pause := time.Duration(rng.ExpFloat64() * float64(time.Millisecond))
			if rng.IntN(500) == 0 {
				pause = time.Duration(rng.Int64N(int64(10 * time.Second)))
			}
			if rng.IntN(100) == 0 {
				twins.block(rng.IntN(3), rng.Uint64()&rng.Uint64())
			}
			twins.step(t, rng.IntN(3), hashes[rng.IntN(len(hashes))], pause, rng.IntN(65536))
		}
	}
}

func FuzzFlows(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 1, 1, 1, 1, 255, 255, 255, 255, 0, 1})
	f.Add(make([]byte, 200))
	f.Fuzz(func(t *testing.T, ops []byte) {
		twins := newTwins(4)
		for ; len(ops) >= 10; ops = ops[10:] {
			pause := time.Duration(binary.BigEndian.Uint32(ops[4:])) * 8 // up to 34 s
			twins.step(t, int(ops[0])%3, binary.BigEndian.Uint32(ops), pause, int(binary.BigEndian.Uint16(ops[8:])))
		}
	})
}

// distinctHashes are hashes whose flows share no entry of a table of 2^16.
func distinctHashes(rng *rand.Rand, n int) []uint32 {
	hashes := make([]uint32, n)
	for i, upper := range rng.Perm(1 << 16)[:n] {
		hashes[i] = uint32(upper)<<16 | uint32(rng.IntN(1<<16))
	}
	return hashes
}

func TestFlowKeepsPortUntilItPauses(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	flows, loads := NewFlows(16, DefaultGap), NewLoads(16, 5)
	type flow struct {
		lane int
		last int64
	}
	known := map[uint32]flow{}
	hashes := distinctHashes(rng, 200)
	for now := int64(1 << 30); now < 1<<30+int64(20*time.Second); now += rng.Int64N(int64(2 * time.Millisecond)) {
		hash := hashes[rng.IntN(len(hashes))]
		lane := flows.Choose(loads, Flow{1, hash}, now, rng.IntN(60000))
		// A pause that is shorter by a tick may round to the gap.
		if f, ok := known[hash]; ok && now-f.last < int64(DefaultGap)-tick && lane != f.lane {
			t.Fatalf("a flow went from port %d to %d after %v", f.lane, lane, time.Duration(now-f.last))
		}
		known[hash] = flow{lane, now}
	}
}

func TestSimultaneousFlowsTakeDifferentPorts(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		flows, loads := NewFlows(16, DefaultGap), NewLoads(16, 5)
		taken := map[int]bool{}
		for _, hash := range distinctHashes(rng, 16) {
			taken[flows.Choose(loads, Flow{1, hash}, 1<<30, 1)] = true
		}
		if len(taken) != 16 {
			t.Fatalf("16 flows took %d of 16 ports", len(taken))
		}
	}
}

// TestFullTableOfSamePeerSpreads: somebody keeps all entries alive with a packet per gap each, while a few large flows load all ports but one. Other flows
// to the same peer take their ports by hash, and keep them. Flows with the entry's tag share its port.
func TestFullTableOfSamePeerSpreads(t *testing.T) {
	const log2, ports, busy, innocent = 12, 64, 1 << 20, 1000
	rng := rand.New(rand.NewPCG(13, 14))
	table, loads, now := NewFlows(log2, DefaultGap), manyLoads(1, ports), int64(1<<40)
	for lane := range ports - 1 {
		loads.Add(1+lane, now, busy)
	}
	for i := range uint32(1 << log2) {
		table.Choose(loads, Flow{1, i << (32 - log2)}, now, 0)
	}
	lanes, used := map[uint32]int{}, map[int]int{}
	for range innocent {
		hash := rng.Uint32()
		lane := table.Choose(loads, Flow{1, hash}, now, 1400)
		if hash&tagMask != 0 {
			lanes[hash] = lane
			used[lane]++
		} else if lane != ports {
			t.Errorf("a flow with an entry's tag left from lane %d", lane)
		}
	}
	for lane, n := range used {
		if n > 3*innocent/ports {
			t.Errorf("%d of %d flows left from lane %d of %d", n, innocent, lane, ports)
		}
	}
	for hash, was := range lanes {
		if got := table.Choose(loads, Flow{1, hash}, now+int64(DefaultGap)/2, 1400); got != was {
			t.Fatalf("a flow went from lane %d to %d", was, got)
		}
	}
}

// manyLoads returns Loads of all lanes from first on.
func manyLoads(first, n int) *Loads {
	lanes := make([]uint8, n)
	for i := range lanes {
		lanes[i] = uint8(first + i)
	}
	return NewLoadsOf(lanes, 0)
}

// TestOtherPeersFlowsMoveNone: flows of peers share the entries of a small table, begin, pause and end. One of the peers has no ports yet.
func TestOtherPeersFlowsMoveNone(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	flows, now := NewFlows(2, DefaultGap), int64(1<<40)
	loads := []*Loads{manyLoads(1, 3), manyLoads(4, 64), manyLoads(68, 16)}
	type sent struct{ lane, at int64 }
	last := map[Flow]sent{}
	for range 200_000 {
		now += rng.Int64N(int64(20 * time.Millisecond))
		if rng.IntN(1000) == 0 {
			now += int64(3 * DefaultGap)
		}
		flow := Flow{uint16(1 + rng.IntN(4)), uint32(rng.IntN(20)) << 28}
		if flow.Peer == 4 {
			flows.Note(flow, now)
			continue
		}
		if rng.IntN(10) == 0 {
			flow.Hash += uint32(rng.IntN(64) << 8) // a new one
			flow.Hash += uint32(rng.IntN(2))       // with another tag
		}
		l := loads[flow.Peer-1]
		lane := flows.Choose(l, flow, now, 1000)
		if l.index(lane) < 0 {
			t.Fatalf("a flow to peer %d left from lane %d", flow.Peer, lane)
		}
		if f, ok := last[flow]; ok && now-f.at < int64(DefaultGap)-tick && int(f.lane) != lane {
			t.Fatalf("flow %v went from lane %d to %d after %v", flow, f.lane, lane, time.Duration(now-f.at))
		}
		last[flow] = sent{int64(lane), now}
	}
}

// TestFullTableOfOtherPeersSpreads: all entries are those of a peer to which nothing is spread. Flows to another one take their ports by hash, and
// move only if their own port is blocked.
func TestFullTableOfOtherPeersSpreads(t *testing.T) {
	const flows = 1000
	rng := rand.New(rand.NewPCG(11, 12))
	table, loads, now := NewFlows(12, DefaultGap), manyLoads(1, 16), int64(1<<40)
	for i := range uint32(1 << 12) {
		table.Note(Flow{2, i << 20}, now)
	}
	lanes, used := map[uint32]int{}, map[int]int{}
	for range flows {
		hash := rng.Uint32()
		lanes[hash] = table.Choose(loads, Flow{1, hash}, now, 1000)
		used[lanes[hash]]++
	}
	if len(used) != 16 || used[ListenPort] > 0 {
		t.Fatalf("flows per lane: %v", used)
	}
	for lane, n := range used {
		if n > 2*flows/16 {
			t.Errorf("%d of %d flows left from lane %d", n, flows, lane)
		}
	}
	blocking := loads.Blocked(func(i int) bool { return i == 4 || i == 5 })
	for hash, was := range lanes {
		want := was
		if was == 5 || was == 6 {
			want = 7
		}
		if got := table.Choose(blocking, Flow{1, hash}, now+1, 1000); got != want {
			t.Fatalf("lanes 5 and 6 are blocked: a flow of lane %d went to %d", was, got)
		}
		if got := table.Choose(loads, Flow{1, hash}, now+2, 1000); got != was {
			t.Fatalf("no lane is blocked: a flow of lane %d went to %d", was, got)
		}
		if got := table.Choose(loads.Blocked(func(int) bool { return true }), Flow{1, hash}, now+3, 1000); got != was {
			t.Fatalf("all are blocked: a flow of lane %d went to %d", was, got)
		}
	}
}

// TestTicksBeginAnew has a flow that sends again after 78 hours, when ticks are those of its last packet, and beyond.
func TestTicksBeginAnew(t *testing.T) {
	flows, loads := NewFlows(12, DefaultGap), manyLoads(1, 4)
	const again = int64(1) << (tickBits + tickShift)
	first := flows.Choose(loads, Flow{1, 0}, again-1, 100_000)
	if got := flows.Choose(loads, Flow{1, 0}, again+1, 100_000); got != first {
		t.Errorf("a flow that did not pause went from lane %d to %d", first, got)
	}
	if got := flows.Choose(loads, Flow{1, 0}, again+int64(DefaultGap), 100_000); got == first {
		t.Error("a flow that paused is on its loaded lane")
	}
}

// TestNoteKeepsActiveFlows: a flow that may not be spread yet shares an entry with one that is.
func TestNoteKeepsActiveFlows(t *testing.T) {
	flows, loads, now := NewFlows(16, DefaultGap), NewLoadsOf([]uint8{1, 2, 3}, 1), int64(1<<30)
	lane := flows.Choose(loads, Flow{1, 0xabcd0001}, now, 1000)
	for range 10 {
		now += int64(DefaultGap) / 2
		flows.Note(Flow{1, 0xabcd0002}, now)
		if got := flows.Choose(loads, Flow{1, 0xabcd0001}, now, 1000); got != lane {
			t.Fatalf("moved from %d to %d", lane, got)
		}
	}
}

// TestActiveFlowKeepsRemovedPort: when the ports are others, a flow stays where it is until it pauses.
func TestActiveFlowKeepsRemovedPort(t *testing.T) {
	flows, now := NewFlows(16, DefaultGap), int64(1<<30)
	before, after := NewLoadsOf([]uint8{1, 2, 3}, 1), NewLoadsOf([]uint8{9, 1}, 0)
	const hash = 0xabcd0001
	if lane := flows.Choose(before, Flow{1, hash}, now, 1000); lane != 2 {
		t.Fatalf("took port %d, want the first of the order, 2", lane)
	}
	if lane := flows.Choose(after, Flow{1, hash}, now+1, 1000); lane != 2 {
		t.Errorf("moved to port %d at once", lane)
	}
	if lane := flows.Choose(after, Flow{1, hash}, now+2*int64(DefaultGap), 1000); lane != 9 {
		t.Errorf("took port %d after a pause, want 9", lane)
	}
	if after.Bytes(0, now+2*int64(DefaultGap)) != 1000 || after.Bytes(1, now) != 0 {
		t.Error("what left on a port that is gone was counted for one that is not")
	}
}

func TestPausedFlowTakesLeastLoadedPort(t *testing.T) {
	flows, loads := NewFlows(16, DefaultGap), NewLoads(4, 0)
	now := int64(1 << 30)
	for hash, n := range []int{4000, 3000, 100, 2000} {
		flows.Choose(loads, Flow{1, uint32(hash) << 16}, now, n)
	}
	if lane := flows.Choose(loads, Flow{1, 0}, now+int64(DefaultGap)-tick, 0); lane != 0 {
		t.Errorf("got port %d within the gap, want the flow's old port", lane)
	}
	if lane := flows.Choose(loads, Flow{1, 0}, now+2*int64(DefaultGap), 0); lane != 2 {
		t.Errorf("took port %d, not the idle one", lane)
	}
}

func TestFlowStaysWithinPeersPorts(t *testing.T) {
	flows, many, few := NewFlows(16, DefaultGap), NewLoads(MaxPorts, 63), NewLoads(3, 0)
	if lane := flows.Choose(many, Flow{1, 63}, 1<<30, 1); lane != 63 {
		t.Fatalf("took port %d", lane)
	}
	if lane := flows.Choose(few, Flow{1, 63}, 1<<30, 1); lane != 63%3 {
		t.Errorf("took port %d of 3", lane)
	}
}

func TestEqualFlowsSpreadEvenly(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, n := range []int{16, 32, 64, 160, 1000} {
		flows, loads := NewFlows(16, DefaultGap), NewLoads(16, 5)
		hashes := distinctHashes(rng, n)
		var bytes [16]int
		now := int64(1 << 30)
		for round := range 200 {
			for _, hash := range hashes {
				now += int64(10*time.Millisecond) / int64(n)
				lane := flows.Choose(loads, Flow{1, hash}, now, 1400)
				if round >= 100 { // all have been there for as long
					bytes[lane] += 1400
				}
			}
		}
		busiest, sum := 0, 0
		for _, b := range bytes {
			busiest, sum = max(busiest, b), sum+b
		}
		if ratio := float64(busiest) * 16 / float64(sum); ratio > 1.25 {
			t.Errorf("%d flows: the busiest port carries %.2f times the mean", n, ratio)
		}
	}
}

func TestLoadsHalveWithEveryEpoch(t *testing.T) {
	const epoch = int64(1) << 27
	loads := NewLoads(1, 5)
	flows := NewFlows(16, DefaultGap)
	start := 1000 * epoch
	flows.Choose(loads, Flow{1, 0}, start, 1<<20)
	for age, want := range map[int64]uint64{0: 1 << 20, 1: 1 << 19, 10: 1 << 10, 20: 1, 21: 0, 63: 0, 64: 0, 1000: 0} {
		if got := loads.Bytes(0, start+age*epoch); got != want {
			t.Errorf("after %d epochs: got %d bytes, want %d", age, got, want)
		}
	}
}

func TestLoadsSurviveEpochWraparound(t *testing.T) {
	const epoch = int64(1) << 27
	loads, flows := NewLoads(1, 5), NewFlows(16, DefaultGap)
	end := epoch * (1 << 24) // where 24 bits begin again, after 26 days
	flows.Choose(loads, Flow{1, 0}, end-1, 4096)
	if got := loads.Bytes(0, end); got != 2048 {
		t.Errorf("one epoch later: got %d bytes, want 2048", got)
	}
}

func TestLoadsSaturate(t *testing.T) {
	loads, flows := NewLoads(1, 5), NewFlows(16, DefaultGap)
	for range 3 {
		flows.Choose(loads, Flow{1, 0}, 1<<30, 1<<39)
	}
	if got := loads.Bytes(0, 1<<30); got != 1<<40-1 {
		t.Errorf("got %#x, want %#x", got, 1<<40-1)
	}
}

func TestLoadsAreSafeForConcurrentUse(t *testing.T) {
	loads := NewLoads(16, 5)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			flows := NewFlows(8, DefaultGap)
			rng := rand.New(rand.NewPCG(uint64(worker), 0))
			for now := range int64(10000) {
				if lane := flows.Choose(loads, Flow{1, rng.Uint32()}, now<<12, 1400); lane < 0 || lane >= 16 {
					t.Errorf("port %d of 16", lane)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestChoosingAllocatesNothing(t *testing.T) {
	flows, loads := NewFlows(16, DefaultGap), NewLoads(16, 5)
	now, hash := int64(1<<30), uint32(1)
	allocs := testing.AllocsPerRun(1000, func() {
		now += 1 << 16
		hash *= 0x9e3779b1
		flows.Choose(loads, Flow{1, hash}, now, 1400)
	})
	if allocs != 0 {
		t.Errorf("got %v allocations per packet, want 0", allocs)
	}
}

func BenchmarkChoose(b *testing.B) {
	for name, gap := range map[string]time.Duration{"known flow": DefaultGap, "new flow, 64 ports in use": 0} {
		b.Run(name, func(b *testing.B) {
			flows, loads := NewFlows(16, gap), NewLoads(MaxPorts, 5)
			now := int64(1 << 30)
			for b.Loop() {
				now += 1024
				flows.Choose(loads, Flow{1, 0x12345678}, now, 1400)
			}
		})
	}
}

// TestSparseFlowsShareLane has flows of a packet per second each. They begin on lanes of their own, and then share one, unless it is loaded.
func TestSparseFlowsShareLane(t *testing.T) {
	lanes := []uint8{3, 4, 5, 6}
	loads, f := NewLoadsOf(lanes, 1), NewFlows(12, DefaultGap)
	now := int64(time.Hour)
	round := func(pause time.Duration) (used map[int]int) {
		used = map[int]int{}
		for flow := range uint32(16) {
			used[f.Choose(loads, Flow{1, flow << 27}, now, 100)]++
			now += int64(pause) / 16
		}
		return used
	}
	if used := round(time.Second); len(used) != len(lanes) {
		t.Errorf("new flows: got lanes %v, want all", used)
	}
	if used := round(time.Second); used[4] != 16 {
		t.Errorf("sparse flows: got lanes %v, want lane 4 for all", used)
	}
	loads.Add(4, now, 1<<20)
	if used := round(time.Second); used[4] > 0 || used[5] == 0 {
		t.Errorf("the lane is loaded: got lanes %v, want others", used)
	}
	now += int64(time.Minute)
	if used := round(time.Second); len(used) != len(lanes) {
		t.Errorf("after a minute: got lanes %v, want all", used)
	}
}
