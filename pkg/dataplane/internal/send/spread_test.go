// SPDX-License-Identifier: Apache-2.0

package send

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// manyFlows are n flows from our side to the peer's.
func manyFlows(n int) []*flow.Flow {
	flows := make([]*flow.Flow, n)
	for i := range flows {
		ends := lanetest.Out4
		if i%2 == 1 {
			ends = lanetest.Out6
		}
		ends.Src = netip.AddrPortFrom(ends.Src.Addr(), uint16(1000+i))
		flows[i] = &flow.Flow{Ends: ends, ID: uint32(i)}
	}
	return flows
}

// sourcesOf notes from which source each of the peer's flows left.
func sourcesOf(r *rig) map[string]int {
	sources := map[string]int{}
	r.Conn.Fail = func(run *underlay.Run) error {
		for msg := range run.Datagrams {
			out := r.Open(bytes.Clone(msg))
			sources[flowOf(out)] = run.Source
		}
		return nil
	}
	r.Conn.Silent = true
	return sources
}

// flowOf names a packet's source.
func flowOf(packet []byte) string {
	if packet[0]>>4 == 4 {
		return string(packet[12:16]) + string(packet[20:22])
	}
	return string(packet[8:24]) + string(packet[40:42])
}

func TestFlowsUseDifferentSources(t *testing.T) {
	r := newRig(t)
	sources := sourcesOf(r)
	r.Peer.Spread.Store(lane.NewSpread([]uint8{3, 1, 4, 15, 9, 2, 6, 5}))
	var batch [][]byte
	for range 3 {
		for _, f := range manyFlows(8) {
			batch = append(batch, f.Next(100), f.Train(5, 300))
		}
	}
	r.transmit(batch...)
	if len(sources) != 8 {
		t.Fatalf("%d flows left", len(sources))
	}
	used := map[int]bool{}
	for _, s := range sources {
		used[s] = true
	}
	if len(used) != 8 || used[0] {
		t.Errorf("they left from %v, want each from its own", used)
	}
}

func TestFlowsKeepSourceUntilPause(t *testing.T) {
	r := newRig(t)
	sources := sourcesOf(r)
	r.Peer.Spread.Store(lane.NewSpread([]uint8{1, 2, 3, 4}))
	f := manyFlows(1)[0]
	key := flowOf(lanetest.PacketsOf(t, f.Next(10))[0])
	r.transmit(f.Next(100))
	first := sources[key]
	for range 100 {
		r.Now += int64(spread.DefaultGap) - 100_000
		r.transmit(f.Train(40, 1000)) // the most loaded source by far
		if sources[key] != first {
			t.Fatal("the flow changed its source without a pause")
		}
	}
	r.transmit(f.Train(40, 1000), f.Train(40, 1000))
	r.Now += int64(spread.DefaultGap)
	r.transmit(f.Next(100))
	if sources[key] == first {
		t.Error("after a pause the flow is still on the most loaded source")
	}
}

// TestFlowsForgetSourcesOfFormerPort: another port numbers its sources anew, and may have fewer.
func TestFlowsForgetSourcesOfFormerPort(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		r := newRig(t)
		sources := sourcesOf(r)
		r.Peer.Spread.Store(lane.NewSpread([]uint8{7, 8}))
		f := manyFlows(1)[0]
		r.transmit(f.Next(100))
		port := *r.tx.out.lane.Conn.Load()
		r.tx.out.lane.Conn.Store(&port)
		if recorded { // the peer's hello arrives after a packet
			r.Peer.Spread.Store(lane.NewSpread(nil))
			r.transmit(f.Next(100))
		}
		r.Peer.Spread.Store(lane.NewSpread([]uint8{1, 2}))
		r.transmit(f.Next(100))
		if source := sources[flowOf(lanetest.PacketsOf(t, f.Next(8))[0])]; source > 2 || recorded && source != 0 {
			t.Errorf("recorded %v: the flow left from source %d", recorded, source)
		}
	}
}

// TestExistingFlowsKeepListenPort: a flow must not overtake itself when spreading begins.
func TestExistingFlowsKeepListenPort(t *testing.T) {
	for _, staged := range []bool{false, true} {
		r := newRig(t)
		sources := sourcesOf(r)
		r.Peer.Spread.Store(lane.NewSpread(nil))
		old, fresh := manyFlows(2)[0], manyFlows(2)[1]
		if staged {
			r.Peer.Current.Store(nil)
		}
		r.transmit(old.Next(100))
		r.Peer.Current.Store(r.Keys)
		r.Peer.Spread.Store(lane.NewSpread([]uint8{1, 2}))
		r.transmit(old.Next(100), fresh.Next(100))
		if at := sources[flowOf(lanetest.PacketsOf(t, old.Next(8))[0])]; at != 0 {
			t.Errorf("staged %v: the old flow went to source %d", staged, at)
		}
		if at := sources[flowOf(lanetest.PacketsOf(t, fresh.Next(8))[0])]; at == 0 {
			t.Errorf("staged %v: the new flow was not spread", staged)
		}
		r.Now += int64(spread.DefaultGap)
		r.transmit(old.Next(100))
		if at := sources[flowOf(lanetest.PacketsOf(t, old.Next(8))[0])]; at == 0 {
			t.Errorf("staged %v: the old flow was not spread after a pause", staged)
		}
	}
}

// TestOrderIsKeptWithinFlows sends random batches and checks that each flow's packets leave in the order they came, and
// that counters rise with every message of a run's source.
func TestOrderIsKeptWithinFlows(t *testing.T) {
	r := newRig(t)
	r.Peer.Spread.Store(lane.NewSpread([]uint8{1, 2, 3, 4, 5}))
	var check flow.Checker
	sent := 0
	r.Conn.Silent = true
	r.Conn.Fail = func(run *underlay.Run) error {
		for msg := range run.Datagrams {
			p := r.Open(bytes.Clone(msg))
			if err := check.Take(flow.WithVnetHeader(p)); err != nil {
				t.Fatal(err)
			}
		}
		return nil
	}
	flows := manyFlows(12)
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var batch [][]byte
		for range 1 + random.IntN(Slots) {
			f := flows[random.IntN(len(flows))]
			if random.IntN(4) == 0 {
				batch = append(batch, f.Train(2+random.IntN(70), 20+random.IntN(700)))
			} else {
				batch = append(batch, f.Next(20+random.IntN(1300)))
			}
		}
		r.transmit(batch...)
		r.Now += int64(time.Millisecond)
	}
	for _, f := range flows {
		sent += int(f.Sent())
	}
	if check.Total() != uint64(sent) || r.AllDrops() != 0 {
		t.Errorf("%d of %d packets left, %d drops", check.Total(), sent, r.AllDrops())
	}
}

// TestRunsAreGroupedBySource checks the order that lets one system call send several runs.
func TestRunsAreGroupedBySource(t *testing.T) {
	r := newRig(t)
	r.Peer.Spread.Store(lane.NewSpread([]uint8{1, 2, 3}))
	var order []int
	r.Conn.Silent = true
	r.Conn.Fail = func(run *underlay.Run) error {
		order = append(order, run.Source)
		return nil
	}
	var batch [][]byte
	for i := range 60 {
		batch = append(batch, manyFlows(3)[i%3].Next(100+i))
	}
	r.transmit(batch...)
	if changes := len(slices.Compact(slices.Clone(order))); changes != 3 {
		t.Errorf("sources in the order %v, want three groups", order)
	}
}

func TestSpreadingAllocatesNothing(t *testing.T) {
	for _, sources := range [][]uint8{nil, {1, 2, 3, 4, 5, 6, 7, 8}} {
		for name, elements := range lanetest.Batches(lanetest.Out4) {
			r := newRig(t)
			r.Conn.Silent = true
			r.Peer.Spread.Store(lane.NewSpread(sources))
			for _, f := range manyFlows(10) {
				elements = append(elements, f.Next(100))
			}
			r.transmit(elements...)
			if n := testing.AllocsPerRun(50, func() { r.transmit(elements...) }); n != 0 {
				t.Errorf("%s over %d sources: got %v allocations per batch, want 0", name, len(sources), n)
			}
		}
	}
}

func TestControlMessagesAreCounted(t *testing.T) {
	r := newRig(t)
	ours, _ := underlaytest.Pipe(1)
	slow := r.newSlow(ours)
	hello := wire.AppendHello(nil, &wire.Hello{})
	slow.SendControl(r.Peer, r.Keys, []ControlMessage{{Plain: hello}, {Plain: wire.AppendProbe(nil, &wire.Probe{}), Size: 1300}, {}})
	if s := slow.Lane.Snapshot(); s.TxControl != 2 || s.TxPackets != 3 {
		t.Errorf("got %d control messages of %d sent, want 2 of 3", s.TxControl, s.TxPackets)
	}
}

// TestBlockedSourcesSendFromListenPort blocks one of two sources while flows use both.
func TestBlockedSourcesSendFromListenPort(t *testing.T) {
	r := newRig(t)
	sources := sourcesOf(r)
	s := lane.NewSpread([]uint8{1, 200})
	r.Peer.Spread.Store(s)
	send := func() (of [3]int) {
		for _, f := range manyFlows(8) {
			r.transmit(f.Next(100))
			of[map[int]int{0: 0, 1: 1, 200: 2}[sources[flowOf(lanetest.PacketsOf(t, f.Next(8))[0])]]]++
		}
		return of
	}
	before := send()
	r.Peer.Spread.Store(s.Blocked(func(index int) bool { return index == 1 }))
	if got, want := send(), [3]int{before[2], before[1], 0}; got != want || before[2] == 0 {
		t.Errorf("got flows %v of listen port and sources, want %v", got, want)
	}
	r.Peer.Spread.Store(r.Peer.Spread.Load().Blocked(func(int) bool { return false }))
	if got := send(); got != before {
		t.Errorf("open again: got flows %v, want %v", got, before)
	}
}

// TestSentMessagesAreCountedBySource has a train, a single packet and a control message leave from each source, and one that is not sent.
func TestSentMessagesAreCountedBySource(t *testing.T) {
	r := newRig(t)
	sources := sourcesOf(r)
	record := r.Conn.Fail
	s := lane.NewSpread([]uint8{1, 200})
	r.Peer.Spread.Store(s)
	want := []uint32{0, 0}
	for _, f := range manyFlows(4) {
		train := f.Train(10, 1000)
		r.transmit(train)
		r.transmit(f.Next(100))
		at := sources[flowOf(lanetest.PacketsOf(t, train)[0])]
		want[map[int]int{1: 0, 200: 1}[at]] += 11
		r.Conn.Fail = func(*underlay.Run) error { return errors.New("refused") }
		r.transmit(f.Next(100))
		r.Conn.Fail = record
	}
	ours, _ := underlaytest.Pipe(1)
	source, err := ours.OpenSource(61000)
	if err != nil || source != 1 {
		t.Fatalf("got source %d and error %v, want 1", source, err)
	}
	probe := ControlMessage{Source: 1, Plain: wire.AppendProbe(nil, &wire.Probe{Kind: wire.ProbePort, Size: wire.MinProbeSize})}
	r.newSlow(ours).SendControl(r.Peer, r.Keys, []ControlMessage{probe, probe, {Plain: probe.Plain}})
	want[0] += 2
	if got := s.AppendSent(nil); !slices.Equal(got, want) || want[1] == 0 {
		t.Errorf("got %v messages of the sources, want %v", got, want)
	}
	if got := s.Blocked(func(int) bool { return true }).AppendSent(nil); !slices.Equal(got, want) {
		t.Errorf("a copy: got %v, want %v", got, want)
	}
}

// TestLanesWakeProberOnce has lanes send as many messages as were asked for, and more.
func TestLanesWakeProberOnce(t *testing.T) {
	r := newRig(t)
	s := lane.NewSpread([]uint8{1})
	r.Peer.Spread.Store(s)
	f := manyFlows(1)[0]
	for _, c := range []struct {
		after uint32
		want  []int // after each message
	}{{0, []int{0, 0, 0}}, {1, []int{1, 1, 1}}, {3, []int{0, 0, 1, 1}}, {0, []int{0, 0}}} {
		r.Owner.Probes = 0
		if s.WakeAfter(s.AppendSent(nil), c.after) {
			t.Errorf("after %d: got passed, want it to come", c.after)
		}
		for i, want := range c.want {
			if r.transmit(f.Next(100)); r.Owner.Probes != want {
				t.Errorf("after %d, message %d: got %d calls, want %d", c.after, i, r.Owner.Probes, want)
			}
		}
	}
	if !s.WakeAfter([]uint32{0}, 1) {
		t.Error("got messages to come, want passed")
	}
	lane.NewSpread(nil).WakeAfter(nil, 1)
}
