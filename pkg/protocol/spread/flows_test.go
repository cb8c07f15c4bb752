// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// slowFlows and slowLoads say in plain structs what Flows and Loads do with packed words.
type slowFlows struct {
	gap  int64
	seen map[uint32]slowFlow // by the hash's upper bits
	bits int
}

type slowFlow struct {
	tick int64
	lane int
}

type slowLoads []slowLoad

type slowLoad struct {
	epoch int64
	bytes uint64
}

func (l slowLoads) at(lane int, epoch int64) uint64 {
	bytes := l[lane].bytes
	for e := l[lane].epoch; e < epoch && bytes > 0; e++ {
		bytes /= 2
	}
	return bytes
}

func (l slowLoads) least(epoch int64) int {
	best := 5 % len(l)
	for i := range l {
		if lane := (5%len(l) + i) % len(l); l.at(lane, epoch) < l.at(best, epoch) {
			best = lane
		}
	}
	return best
}

func (f *slowFlows) choose(l slowLoads, hash uint32, now int64, n int) int {
	tick, epoch := now/1024, now/(1<<27)
	key := hash >> (32 - f.bits)
	flow, known := f.seen[key]
	lane := flow.lane
	if !known || tick-flow.tick >= f.gap {
		lane = l.least(epoch)
	}
	f.seen[key] = slowFlow{tick, lane}
	lane %= len(l)
	l[lane] = slowLoad{epoch, min(l.at(lane, epoch)+uint64(n), 1<<40-1)}
	return lane
}

// twins are the real thing and its reference.
type twins struct {
	flows *Flows
	slow  slowFlows
	loads [3]*Loads
	plain [3]slowLoads
	now   int64
}

func newTwins(log2 int) *twins {
	t := &twins{
		flows: NewFlows(log2, DefaultGap), now: 1 << 40,
		slow: slowFlows{gap: int64(DefaultGap) / 1024, seen: map[uint32]slowFlow{}, bits: log2},
	}
	for i, n := range []int{1, 16, MaxPorts} {
		t.loads[i], t.plain[i] = NewLoads(n, 5), make(slowLoads, n)
	}
	return t
}

// step lets n bytes of a flow go to one of the peers, after a pause, and compares.
func (t *twins) step(tb testing.TB, peer int, hash uint32, pause time.Duration, n int) {
	tb.Helper()
	t.now += int64(pause)
	got := t.flows.Choose(t.loads[peer], hash, t.now, n)
	if want := t.slow.choose(t.plain[peer], hash, t.now, n); got != want {
		tb.Fatalf("hash %#x at %d: lane %d, want %d", hash, t.now, got, want)
	}
	if got, want := t.loads[peer].Bytes(got, t.now), t.plain[peer].at(got, t.now/(1<<27)); got != want {
		tb.Fatalf("hash %#x at %d: load %d, want %d", hash, t.now, got, want)
	}
}

func TestKeptFlowDoesNotPause(t *testing.T) {
	flows, loads, now := NewFlows(8, DefaultGap), NewLoads(4, 0), int64(1<<40)
	flows.Keep(7, now) // unknown: nothing to keep
	first := flows.Choose(loads, 7, now, 1000)
	for range 3 {
		now += int64(2 * DefaultGap)
		flows.Keep(7, now)
		if got := flows.Choose(loads, 7, now, 1000); got != first || flows.Lane(7) != first {
			t.Fatalf("got lane %d, and Lane %d, want %d", got, flows.Lane(7), first)
		}
	}
	now += int64(DefaultGap)
	if got := flows.Choose(loads, 7, now, 1000); got == first {
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
		lane := flows.Choose(loads, hash, now, rng.IntN(60000))
		// A tick is 1,024 ns: a pause that is shorter by one may round to the gap.
		if f, ok := known[hash]; ok && now-f.last < int64(DefaultGap)-2048 && lane != f.lane {
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
			taken[flows.Choose(loads, hash, 1<<30, 1)] = true
		}
		if len(taken) != 16 {
			t.Fatalf("16 flows took %d of 16 ports", len(taken))
		}
	}
}

func TestFlowsSharingEntrySharePort(t *testing.T) {
	flows, loads := NewFlows(16, DefaultGap), NewLoads(16, 5)
	first := flows.Choose(loads, 0xabcd0001, 1<<30, 1000)
	if second := flows.Choose(loads, 0xabcd0002, 1<<30, 1000); second != first {
		t.Errorf("one entry, ports %d and %d", first, second)
	}
}

// TestPeersSharingEntryKeepTheirPorts: none may move another, however many ports its peer has.
func TestPeersSharingEntryKeepTheirPorts(t *testing.T) {
	const hash, other = 0xabcd0001, 0xabcd0002
	for name, c := range map[string]struct{ many, few *Loads }{
		"lanes modulo their number": {NewLoads(16, 13), NewLoads(4, 0)},
		"lanes as they are":         {NewLoadsOf([]uint8{40, 41, 42, 43}, 2), NewLoadsOf([]uint8{7}, 0)},
	} {
		flows, now := NewFlows(16, DefaultGap), int64(1<<30)
		a := flows.Choose(c.many, hash, now, 1000)
		b := flows.Choose(c.few, other, now, 1000)
		for range 100 {
			now += int64(DefaultGap) / 2
			if got := flows.Choose(c.few, other, now, 1000); got != b {
				t.Fatalf("%s: the one went from port %d to %d", name, b, got)
			}
			if got := flows.Choose(c.many, hash, now, 1000); got != a {
				t.Fatalf("%s: the other went from port %d to %d", name, a, got)
			}
		}
	}
}

// TestNoteKeepsActiveFlows: a flow that may not be spread yet shares an entry with one that is.
func TestNoteKeepsActiveFlows(t *testing.T) {
	flows, loads, now := NewFlows(16, DefaultGap), NewLoadsOf([]uint8{1, 2, 3}, 1), int64(1<<30)
	lane := flows.Choose(loads, 0xabcd0001, now, 1000)
	for range 10 {
		now += int64(DefaultGap) / 2
		flows.Note(0xabcd0002, now)
		if got := flows.Choose(loads, 0xabcd0001, now, 1000); got != lane {
			t.Fatalf("moved from %d to %d", lane, got)
		}
	}
}

// TestActiveFlowKeepsRemovedPort: when the ports are others, a flow stays where it is until it pauses.
func TestActiveFlowKeepsRemovedPort(t *testing.T) {
	flows, now := NewFlows(16, DefaultGap), int64(1<<30)
	before, after := NewLoadsOf([]uint8{1, 2, 3}, 1), NewLoadsOf([]uint8{9, 1}, 0)
	const hash = 0xabcd0001
	if lane := flows.Choose(before, hash, now, 1000); lane != 2 {
		t.Fatalf("took port %d, want the first of the order, 2", lane)
	}
	if lane := flows.Choose(after, hash, now+1, 1000); lane != 2 {
		t.Errorf("moved to port %d at once", lane)
	}
	if lane := flows.Choose(after, hash, now+2*int64(DefaultGap), 1000); lane != 9 {
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
		flows.Choose(loads, uint32(hash)<<16, now, n)
	}
	if lane := flows.Choose(loads, 0, now+int64(DefaultGap)-2048, 0); lane != 0 {
		t.Errorf("got port %d within the gap, want the flow's old port", lane)
	}
	if lane := flows.Choose(loads, 0, now+2*int64(DefaultGap), 0); lane != 2 {
		t.Errorf("took port %d, not the idle one", lane)
	}
}

func TestFlowStaysWithinPeersPorts(t *testing.T) {
	flows, many, few := NewFlows(16, DefaultGap), NewLoads(MaxPorts, 63), NewLoads(3, 0)
	if lane := flows.Choose(many, 63, 1<<30, 1); lane != 63 {
		t.Fatalf("took port %d", lane)
	}
	if lane := flows.Choose(few, 63, 1<<30, 1); lane != 63%3 {
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
				lane := flows.Choose(loads, hash, now, 1400)
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
	flows.Choose(loads, 0, start, 1<<20)
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
	flows.Choose(loads, 0, end-1, 4096)
	if got := loads.Bytes(0, end); got != 2048 {
		t.Errorf("one epoch later: got %d bytes, want 2048", got)
	}
}

func TestLoadsSaturate(t *testing.T) {
	loads, flows := NewLoads(1, 5), NewFlows(16, DefaultGap)
	for range 3 {
		flows.Choose(loads, 0, 1<<30, 1<<39)
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
				if lane := flows.Choose(loads, rng.Uint32(), now<<12, 1400); lane < 0 || lane >= 16 {
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
		flows.Choose(loads, hash, now, 1400)
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
				flows.Choose(loads, 0x12345678, now, 1400)
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
			used[f.Choose(loads, flow<<27, now, 100)]++
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
