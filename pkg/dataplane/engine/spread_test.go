// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// manyFlows are n flows from our side to the peer's.
func manyFlows(n int) []*flow.Flow {
	flows := make([]*flow.Flow, n)
	for i := range flows {
		ends := out4
		if i%2 == 1 {
			ends = out6
		}
		ends.Src = netip.AddrPortFrom(ends.Src.Addr(), uint16(1000+i))
		flows[i] = &flow.Flow{Ends: ends, ID: uint32(i)}
	}
	return flows
}

// sourcesOf notes from which source each of the peer's flows left.
func sourcesOf(r *rig) map[string]int {
	sources := map[string]int{}
	r.conn.fail = func(run *underlay.Run) error {
		for msg := range run.Datagrams {
			out := r.open(bytes.Clone(msg))
			sources[flowOf(out)] = run.Source
		}
		return nil
	}
	r.conn.silent = true
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
	r.peer.Spread.Store(NewSpread([]uint8{3, 1, 4, 15, 9, 2, 6, 5}))
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
	r.peer.Spread.Store(NewSpread([]uint8{1, 2, 3, 4}))
	f := manyFlows(1)[0]
	key := flowOf(packetsOf(t, f.Next(10))[0])
	r.transmit(f.Next(100))
	first := sources[key]
	for range 100 {
		r.now += int64(spread.DefaultGap) - 100_000
		r.transmit(f.Train(40, 1000)) // the most loaded source by far
		if sources[key] != first {
			t.Fatal("the flow changed its source without a pause")
		}
	}
	r.transmit(f.Train(40, 1000), f.Train(40, 1000))
	r.now += int64(spread.DefaultGap)
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
		r.peer.Spread.Store(NewSpread([]uint8{7, 8}))
		f := manyFlows(1)[0]
		r.transmit(f.Next(100))
		port := *r.tx.lane.conn.Load()
		r.tx.lane.conn.Store(&port)
		if recorded { // the peer's hello arrives after a packet
			r.peer.Spread.Store(NewSpread(nil))
			r.transmit(f.Next(100))
		}
		r.peer.Spread.Store(NewSpread([]uint8{1, 2}))
		r.transmit(f.Next(100))
		if source := sources[flowOf(packetsOf(t, f.Next(8))[0])]; source > 2 || recorded && source != 0 {
			t.Errorf("recorded %v: the flow left from source %d", recorded, source)
		}
	}
}

// TestExistingFlowsKeepListenPort: a flow must not overtake itself when spreading begins.
func TestExistingFlowsKeepListenPort(t *testing.T) {
	for _, staged := range []bool{false, true} {
		r := newRig(t)
		sources := sourcesOf(r)
		r.peer.Spread.Store(NewSpread(nil))
		old, fresh := manyFlows(2)[0], manyFlows(2)[1]
		if staged {
			r.peer.Current.Store(nil)
		}
		r.transmit(old.Next(100))
		r.peer.Current.Store(r.keys)
		r.peer.Spread.Store(NewSpread([]uint8{1, 2}))
		r.transmit(old.Next(100), fresh.Next(100))
		if at := sources[flowOf(packetsOf(t, old.Next(8))[0])]; at != 0 {
			t.Errorf("staged %v: the old flow went to source %d", staged, at)
		}
		if at := sources[flowOf(packetsOf(t, fresh.Next(8))[0])]; at == 0 {
			t.Errorf("staged %v: the new flow was not spread", staged)
		}
		r.now += int64(spread.DefaultGap)
		r.transmit(old.Next(100))
		if at := sources[flowOf(packetsOf(t, old.Next(8))[0])]; at == 0 {
			t.Errorf("staged %v: the old flow was not spread after a pause", staged)
		}
	}
}

// TestOrderIsKeptWithinFlows sends random batches and checks that each flow's packets leave in the order they came, and
// that counters rise with every message of a run's source.
func TestOrderIsKeptWithinFlows(t *testing.T) {
	r := newRig(t)
	r.peer.Spread.Store(NewSpread([]uint8{1, 2, 3, 4, 5}))
	var check flow.Checker
	sent := 0
	r.conn.silent = true
	r.conn.fail = func(run *underlay.Run) error {
		for msg := range run.Datagrams {
			p := r.open(bytes.Clone(msg))
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
		for range 1 + random.IntN(txSlots) {
			f := flows[random.IntN(len(flows))]
			if random.IntN(4) == 0 {
				batch = append(batch, f.Train(2+random.IntN(70), 20+random.IntN(700)))
			} else {
				batch = append(batch, f.Next(20+random.IntN(1300)))
			}
		}
		r.transmit(batch...)
		r.now += int64(time.Millisecond)
	}
	for _, f := range flows {
		sent += int(f.Sent())
	}
	if check.Total() != uint64(sent) || r.allDrops() != 0 {
		t.Errorf("%d of %d packets left, %d drops", check.Total(), sent, r.allDrops())
	}
}

// TestRunsAreGroupedBySource checks the order that lets one system call send several runs.
func TestRunsAreGroupedBySource(t *testing.T) {
	r := newRig(t)
	r.peer.Spread.Store(NewSpread([]uint8{1, 2, 3}))
	var order []int
	r.conn.silent = true
	r.conn.fail = func(run *underlay.Run) error {
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
		for name, elements := range batches(out4) {
			r := newRig(t)
			r.conn.silent = true
			r.peer.Spread.Store(NewSpread(sources))
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

func TestSpreadSourcesDoNotRoam(t *testing.T) {
	ports := spread.Ports{First: 61000, Last: 61999}
	at := func(addr string, port uint16) underlay.Endpoint {
		return underlay.Endpoint{Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), port), Src: there.Src}
	}
	moved := at("198.51.100.7", 51820)
	for _, c := range []struct {
		name  string
		from  underlay.Endpoint
		known bool
		roams []underlay.Endpoint
		heard bool
	}{
		{"the listen port", there, true, nil, false},
		{"a source port", at("192.0.2.2", 61000), true, nil, true},
		{"the last source port", at("192.0.2.2", 61999), true, nil, true},
		{"another port", at("192.0.2.2", 62000), true, []underlay.Endpoint{at("192.0.2.2", 62000)}, false},
		{"a source port at another address", at("198.51.100.7", 61001), true, []underlay.Endpoint{moved}, true},
		{"a source port that nobody has announced", at("192.0.2.2", 61000), false, []underlay.Endpoint{at("192.0.2.2", 61000)}, false},
	} {
		r := newRig(t)
		if c.known {
			r.peer.Gathered.Store(&ports)
		}
		run, size := r.seal(in4.UDP([]byte("x")))
		r.receiveFrom(c.from, run, size)
		if !slices.Equal(r.owner.roams, c.roams) {
			t.Errorf("%s: roamed to %v, want %v", c.name, r.owner.roams, c.roams)
		}
		if r.peer.Heard.Load() != c.heard || (r.owner.heard == 1) != c.heard {
			t.Errorf("%s: heard %v, reported %d times", c.name, r.peer.Heard.Load(), r.owner.heard)
		}
	}
}

// TestHellosReachSlowPath, and neither to the TUN nor to where they came from.
func TestHellosReachSlowPath(t *testing.T) {
	r := newRig(t)
	hello := wire.AppendHello(nil, &wire.Hello{Gathers: true, First: 61000, Last: 61999})
	packet := in4.UDP([]byte("data"))
	elsewhere := underlay.Endpoint{Dst: netip.MustParseAddrPort("192.0.2.2:61234"), Src: there.Src}
	run, size := r.seal(hello)
	r.receiveFrom(elsewhere, run, size)
	if len(r.owner.hellos) != 1 || !bytes.HasPrefix(r.owner.hellos[0], hello) || len(r.owner.roams) != 0 {
		t.Errorf("%d hellos, roamed to %v", len(r.owner.hellos), r.owner.roams)
	}
	run, size = r.seal(packet)
	r.receive(run, size)
	if got := r.delivered(); len(got) != 1 {
		t.Errorf("got %d trains for the TUN, want the packet's", len(got))
	}
	if r.allDrops() != 0 {
		t.Errorf("got %d drops, want 0", r.allDrops())
	}
	run, size = r.seal(append([]byte{0}, hello[2:]...)) // not quite one
	r.receive(run, size)
	if r.drops(drop.RXInnerMalformed) != 1 {
		t.Error("a plaintext that is neither packet nor hello was not counted")
	}
}

func TestControlMessagesAreCounted(t *testing.T) {
	r := newRig(t)
	ours, _ := underlay.Pipe(1)
	if err := r.engine.Attach(ours); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.engine.Detach() })
	hello := wire.AppendHello(nil, &wire.Hello{})
	keys := r.peer.Current.Load()
	r.engine.SendControl(r.peer, keys, ControlMessage{Plain: hello}, ControlMessage{Plain: wire.AppendProbe(nil, &wire.Probe{}), Size: 1300})
	r.engine.SendKeepalive(r.peer, keys)
	for _, refusal := range []drop.Reason{drop.None, drop.HelloUnwanted} {
		r.owner.refusal = refusal
		run, size := r.seal(hello)
		r.receive(run, size)
	}
	s := r.engine.Stats()
	if s.Slow.TxControl != 2 || s.Slow.TxPackets != 3 || s.Lanes[0].RxControl != 1 {
		t.Errorf("got %d control messages of %d sent, and %d received, want 2 of 3, and 1", s.Slow.TxControl, s.Slow.TxPackets, s.Lanes[0].RxControl)
	}
}

// TestSecondaryPortTrafficReachesTUN sends messages to a source port instead of the listen port.
func TestSecondaryPortTrafficReachesTUN(t *testing.T) {
	r := newRig(t)
	ours, theirs := underlay.Pipe(1)
	source, err := ours.OpenSource(61000)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.engine.Attach(ours); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.engine.Detach() }()
	run, size := r.seal(in4.UDP([]byte("stray")))
	to := ours.Endpoint(false)
	to.Dst = netip.AddrPortFrom(to.Dst.Addr(), ours.Source(source))
	if err := theirs.SendRun(&underlay.Run{To: &to, Parts: [][]byte{run}, SegSize: size, Segments: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.tun.Receive(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}

// TestBlockedSourcesSendFromListenPort blocks one of two sources while flows use both.
func TestBlockedSourcesSendFromListenPort(t *testing.T) {
	r := newRig(t)
	sources := sourcesOf(r)
	s := NewSpread([]uint8{1, 200})
	r.peer.Spread.Store(s)
	send := func() (of [3]int) {
		for _, f := range manyFlows(8) {
			r.transmit(f.Next(100))
			of[map[int]int{0: 0, 1: 1, 200: 2}[sources[flowOf(packetsOf(t, f.Next(8))[0])]]]++
		}
		return of
	}
	before := send()
	r.peer.Spread.Store(s.Blocked(func(index int) bool { return index == 1 }))
	if got, want := send(), [3]int{before[2], before[1], 0}; got != want || before[2] == 0 {
		t.Errorf("got flows %v of listen port and sources, want %v", got, want)
	}
	r.peer.Spread.Store(r.peer.Spread.Load().Blocked(func(int) bool { return false }))
	if got := send(); got != before {
		t.Errorf("open again: got flows %v, want %v", got, before)
	}
}

// TestSentMessagesAreCountedBySource has a train, a single packet and a control message leave from each source, and one that is not sent.
func TestSentMessagesAreCountedBySource(t *testing.T) {
	r := newRig(t)
	sources := sourcesOf(r)
	record := r.conn.fail
	s := NewSpread([]uint8{1, 200})
	r.peer.Spread.Store(s)
	want := []uint32{0, 0}
	for _, f := range manyFlows(4) {
		train := f.Train(10, 1000)
		r.transmit(train)
		r.transmit(f.Next(100))
		at := sources[flowOf(packetsOf(t, train)[0])]
		want[map[int]int{1: 0, 200: 1}[at]] += 11
		r.conn.fail = func(*underlay.Run) error { return errors.New("refused") }
		r.transmit(f.Next(100))
		r.conn.fail = record
	}
	ours, _ := underlay.Pipe(1)
	if err := r.engine.Attach(ours); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.engine.Detach() })
	source, err := ours.OpenSource(61000)
	if err != nil || source != 1 {
		t.Fatalf("got source %d and error %v, want 1", source, err)
	}
	probe := ControlMessage{Source: 1, Plain: wire.AppendProbe(nil, &wire.Probe{Kind: wire.ProbePort, Size: wire.MinProbeSize})}
	r.engine.SendControl(r.peer, r.keys, probe, probe, ControlMessage{Plain: probe.Plain})
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
	s := NewSpread([]uint8{1})
	r.peer.Spread.Store(s)
	f := manyFlows(1)[0]
	for _, c := range []struct {
		after uint32
		want  []int // after each message
	}{{0, []int{0, 0, 0}}, {1, []int{1, 1, 1}}, {3, []int{0, 0, 1, 1}}, {0, []int{0, 0}}} {
		r.owner.probes = 0
		if s.WakeAfter(s.AppendSent(nil), c.after) {
			t.Errorf("after %d: got passed, want it to come", c.after)
		}
		for i, want := range c.want {
			if r.transmit(f.Next(100)); r.owner.probes != want {
				t.Errorf("after %d, message %d: got %d calls, want %d", c.after, i, r.owner.probes, want)
			}
		}
	}
	if !s.WakeAfter([]uint32{0}, 1) {
		t.Error("got messages to come, want passed")
	}
	NewSpread(nil).WakeAfter(nil, 1)
}

// portsOf returns the peer's counts by port.
func portsOf(p *Peer) map[uint16]uint32 {
	counts := map[uint16]uint32{}
	for _, c := range p.PortCounts(nil) {
		counts[c.Port] += c.Messages
	}
	return counts
}

// from returns the peer's endpoint with another port.
func from(port uint16) underlay.Endpoint {
	return underlay.Endpoint{Dst: netip.AddrPortFrom(there.Dst.Addr(), port), Src: there.Src}
}

// TestReceivedMessagesAreCountedByPort has data, keepalives, hellos and messages that are not authentic come from source ports.
func TestReceivedMessagesAreCountedByPort(t *testing.T) {
	r := newRig(t)
	hello := wire.AppendHello(nil, &wire.Hello{})
	run, size := r.seal(in4.UDP(make([]byte, 100)), in4.UDP(make([]byte, 100)), in4.UDP(make([]byte, 100)))
	r.receiveFrom(from(61001), run, size)
	if got := r.peer.PortCounts(nil); got != nil {
		t.Errorf("no ports known: got %v, want none", got)
	}
	r.peer.Gathered.Store(&spread.Ports{First: 61000, Last: 61999})
	for _, plain := range [][][]byte{{in4.UDP([]byte("a")), in4.UDP([]byte("b"))}, {nil}, {hello}} {
		for _, port := range []uint16{61001, 61065, there.Dst.Port(), 5} {
			run, size := r.seal(plain...)
			r.receiveFrom(from(port), run, size)
			r.receiveFrom(from(port), run, size) // a replay
		}
	}
	if got, want := portsOf(r.peer), map[uint16]uint32{61001: 4, 61065: 4}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestManyPortsBeginCountingAnew has a peer that uses more ports than it may at once.
func TestManyPortsBeginCountingAnew(t *testing.T) {
	var p Peer
	for port := range uint16(1000) {
		p.countPort(1000+port, 3)
		p.countPort(1000+port, 1)
	}
	counts := portsOf(&p)
	if n := len(p.PortCounts(nil)); n > spread.MaxPorts || n != len(counts) {
		t.Errorf("got %d counts of %d ports, want at most %d", n, len(counts), spread.MaxPorts)
	}
	if counts[1999] != 4 {
		t.Errorf("got %d messages of the last port, want 4", counts[1999])
	}
}

func TestCountingByPortAllocatesNothing(t *testing.T) {
	r := newRig(t)
	s := NewSpread([]uint8{1, 200})
	r.peer.Spread.Store(s)
	r.peer.countPort(61000, 1)
	if n := testing.AllocsPerRun(100, func() {
		r.peer.countSource(200, 3)
		r.peer.countPort(61000, 3)
		r.peer.countPort(61001, 3)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
