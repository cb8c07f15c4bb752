// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// spraying lets flows to the rig's peer be sprayed over 4 ports, once it has agreed.
func (r *rig) spraying() {
	s := NewSpread([]uint8{1, 2, 3, 4})
	r.peer.Spread.Store(s.Sprayed(Spray{Ports: 4, Lanes: 1}, func(int) uint16 { return 0 }))
}

// hello receives a hello of the peer in a session whose end at the peer is keys.
func (r *rig) hello(keys *session.Keypair, h *wire.Hello) {
	msg := r.message(keys, wire.AppendHello(nil, h))
	r.receive(msg, len(msg))
}

// elephant sends one flow at 4 Gbit/s for 300 ms. It returns the numbers of messages of streams and of others.
func (r *rig) elephant(f *flow.Flow) (streamed, other int) {
	for range 300 {
		r.transmit(f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200))
		for _, msg := range r.sentRaw() {
			if session.IsStream(wire.Counter(msg)) {
				streamed++
			} else {
				other++
			}
		}
		r.now += int64(time.Millisecond)
	}
	return streamed, other
}

// TestEachSessionAgreesOnSpray: the peer may be another program in the next session, which knows no streams.
func TestEachSessionAgreesOnSpray(t *testing.T) {
	r := newRig(t)
	r.spraying()
	f := &flow.Flow{Ends: out4, ID: 1}
	if streamed, _ := r.elephant(f); streamed != 0 {
		t.Errorf("%d messages of streams before the peer's hello", streamed)
	}
	r.hello(r.remote, &wire.Hello{Gathers: true, First: 61000, Last: 61999, Lanes: 1})
	if streamed, _ := r.elephant(f); streamed == 0 {
		t.Error("no message of a stream after the peer's hello")
	}
	ours, theirs := r.newSession(r.peer, true)
	r.peer.Current.Store(ours)
	r.elephant(f) // the stream ends in its session
	if streamed, other := r.elephant(f); streamed != 0 || other == 0 {
		t.Errorf("%d messages of streams in a new session before the peer's hello", streamed)
	}
	r.hello(theirs, &wire.Hello{Gathers: true, First: 61000, Last: 61999})
	if streamed, _ := r.elephant(f); streamed != 0 {
		t.Errorf("%d messages of streams after a hello that announces none", streamed)
	}
}

// TestLanesOfPeerBoundPortsOfSprayedFlow has six sources, with the ports after their number.
func TestLanesOfPeerBoundPortsOfSprayedFlow(t *testing.T) {
	plain := NewSpread([]uint8{1, 2, 3, 4, 5, 6})
	for _, c := range []struct {
		spray Spray
		want  int
	}{
		{Spray{}, 0},
		{Spray{Ports: 4, Lanes: 1}, 4},
		{Spray{Ports: 4, Lanes: 2, FirstPort: 101, LastPort: 200}, 3},
		{Spray{Ports: 4, Lanes: 4, FirstPort: 101, LastPort: 200}, 2},
		{Spray{Ports: 4, Lanes: 6, FirstPort: 101, LastPort: 200}, 0},
		{Spray{Ports: 4, Lanes: 2, FirstPort: 201, LastPort: 300}, 0},
	} {
		if got := plain.Sprayed(c.spray, func(source int) uint16 { return uint16(100 + source) }).Sprays(); got != c.want {
			t.Errorf("%+v: a flow may be sprayed over %d ports, want %d", c.spray, got, c.want)
		}
	}
}

func TestSprayedPacketsCountWhenSent(t *testing.T) {
	r := newRig(t)
	r.spraying()
	r.hello(r.remote, &wire.Hello{Gathers: true, First: 61000, Last: 61999, Lanes: 1})
	f := &flow.Flow{Ends: out4, ID: 1}
	streamed, _ := r.elephant(f)
	if n := r.engine.Stats().Lanes[0].TxSprayed; streamed == 0 || n != uint64(streamed) {
		t.Errorf("counted %d of %d messages of streams", n, streamed)
	}
	r.engine.lanes[0].conn.Store(nil)
	r.transmit(f.Train(45, 1200))
	if n := r.engine.Stats().Lanes[0].TxSprayed; r.drops(drop.TXDown) != 45 || n != uint64(streamed) {
		t.Errorf("counted %d messages of streams, of which %d were dropped, want %d", n, r.drops(drop.TXDown), streamed)
	}
}

// TestPacketsOfAllSizesAreSprayed: a packet larger than the path MTU, which IPv6 has to carry, must not overtake others.
func TestPacketsOfAllSizesAreSprayed(t *testing.T) {
	r := newRig(t)
	r.spraying()
	r.hello(r.remote, &wire.Hello{Gathers: true, First: 61000, Last: 61999, Lanes: 1})
	f := &flow.Flow{Ends: out6, ID: 1}
	r.elephant(f)
	r.peer.SetPathMTU(1100)
	for _, size := range []int{1000, 1200, 1000} {
		r.transmit(f.Train(10, size))
		for _, msg := range r.sentRaw() {
			if !session.IsStream(wire.Counter(msg)) {
				t.Fatalf("a packet with %d bytes does not belong to the stream", size)
			}
		}
	}
}

// TestStreamEndsWithItsKeys: keys are erased at once when the machine was copied, and the stream cannot end in its session.
func TestStreamEndsWithItsKeys(t *testing.T) {
	r := newRig(t)
	r.spraying()
	h := &wire.Hello{Gathers: true, First: 61000, Last: 61999, Lanes: 1}
	r.hello(r.remote, h)
	f := &flow.Flow{Ends: out4, ID: 1}
	r.elephant(f)
	r.keys.Wipe()
	ours, theirs := r.newSession(r.peer, true)
	r.peer.Current.Store(ours)
	r.hello(theirs, h)
	before := r.allDrops()
	r.elephant(f)
	if n := r.allDrops() - before; n != 0 {
		t.Errorf("%d packets were dropped", n)
	}
	if s := r.tx.spray.stream.Keys(); s != ours {
		t.Errorf("the stream is one of %v, want %v", s, ours)
	}
}

// TestSprayedMessagesShareNoCounter has single packets and fragments beside trains, and between them packets of other flows from the same ports.
func TestSprayedMessagesShareNoCounter(t *testing.T) {
	r := newRig(t)
	r.spraying()
	r.hello(r.remote, &wire.Hello{Gathers: true, First: 61000, Last: 61999, Lanes: 1})
	f := &flow.Flow{Ends: out4, ID: 1}
	r.elephant(f)
	r.peer.SetPathMTU(1100)
	seen, streamed := map[uint64]bool{}, 0
	for range 3 {
		var trains [][]byte
		for _, size := range []int{1000, 1000, 1000, 1000, 1000, 1000, 1200, 1200, 900} {
			trains = append(trains, withoutDF(f.Train(1, size)))
			for port := range uint16(8) {
				other := flow.Ends{Src: netip.AddrPortFrom(out4.Src.Addr(), 7000+port), Dst: out4.Dst}
				trains = append(trains, flow.WithVnetHeader(other.UDP(make([]byte, 972))))
			}
		}
		r.transmit(append(trains, withoutDF(f.Train(3, 1000)), withoutDF(f.Train(3, 1200)))...)
		for _, msg := range r.sentRaw() {
			c := wire.Counter(msg)
			if seen[c] {
				t.Fatalf("counter %x was used twice", c)
			}
			seen[c] = true
			if session.IsStream(c) {
				streamed++
			}
		}
	}
	if want := 3 * (9 + 2 + 3 + 2*3); streamed != want || len(seen) != want+3*9*8 {
		t.Errorf("%d messages of %d are of the stream, want %d of %d", streamed, len(seen), want, want+3*9*8)
	}
}

func TestFlowIsNotSprayedOverBlockedPorts(t *testing.T) {
	all := NewSpread([]uint8{1, 2, 3, 4})
	for blocked, want := range map[int][]uint8{1: {1, 3, 4}, 3: {1, 2, 3}} {
		s := all.Blocked(func(i int) bool { return i == blocked }).Sprayed(Spray{Ports: 4, Lanes: 1}, func(int) uint16 { return 0 })
		if got := s.sourcesWith(1); !slices.Equal(got, want) {
			t.Errorf("sprayed over sources %v, want %v", got, want)
		}
	}
}

func TestSlowerFlowIsNoLongerSprayed(t *testing.T) {
	r := newRig(t)
	r.spraying()
	r.hello(r.remote, &wire.Hello{Gathers: true, First: 61000, Last: 61999, Lanes: 1})
	f := &flow.Flow{Ends: out4, ID: 1}
	r.elephant(f)
	for range 500 { // 12 MB/s
		r.sentRaw()
		r.transmit(f.Train(10, 1200))
		r.now += int64(time.Millisecond)
	}
	for _, msg := range r.sentRaw() {
		if session.IsStream(wire.Counter(msg)) {
			t.Fatal("a flow of 12 MB/s is sprayed")
		}
	}
}

// TestStreamOfStoppedFlowEnds: spray is turned off just as the flow stops, and other trains go to another peer.
func TestStreamOfStoppedFlowEnds(t *testing.T) {
	r := newRig(t)
	r.spraying()
	r.hello(r.remote, &wire.Hello{Gathers: true, First: 61000, Last: 61999, Lanes: 1})
	other, _ := r.newPeer("10.0.0.9/32")
	ours, _ := r.newSession(other, true)
	other.Current.Store(ours)
	small := &flow.Flow{Ends: flow.Ends{Src: out4.Src, Dst: mustPort("10.0.0.9:5")}, ID: 2}
	for _, off := range []bool{false, true} {
		r.elephant(&flow.Flow{Ends: out4, ID: 1})
		if s := r.tx.spray.stream.Keys(); s != r.keys {
			t.Fatalf("the stream is one of %v, want %v", s, r.keys)
		}
		if off {
			r.peer.Spread.Store(NewSpread([]uint8{1, 2, 3, 4}))
		}
		r.now += int64(spread.DefaultGap)
		r.transmit(small.Train(2, 100))
		if r.tx.spray.on || r.tx.spray.stream.Keys() != nil {
			t.Errorf("spray is off: %v: the stream is open %v after the last train", off, spread.DefaultGap)
		}
	}
}

// sprayed returns a rig that sprays f over sources 1 to 4. The stream has begun.
func sprayed(t *testing.T, f *flow.Flow) *rig {
	t.Helper()
	r := newRig(t)
	r.spraying()
	r.hello(r.remote, &wire.Hello{Gathers: true, First: 61000, Last: 61999, Lanes: 1})
	if streamed, _ := r.elephant(f); streamed == 0 {
		t.Fatal("the flow is not sprayed")
	}
	return r
}

// TestFlowWithSameHashIsNotSprayed gives the sprayed flow the hash of another one.
func TestFlowWithSameHashIsNotSprayed(t *testing.T) {
	r := sprayed(t, &flow.Flow{Ends: out4, ID: 1})
	other := &flow.Flow{Ends: flow.Ends{Src: netip.AddrPortFrom(out4.Src.Addr(), 7000), Dst: out4.Dst}, ID: 2}
	r.transmit(other.Train(10, 1000))
	r.tx.spray.hash = r.tx.hash
	r.sentRaw()
	r.transmit(other.Train(10, 1000))
	for _, msg := range r.sentRaw() {
		if session.IsStream(wire.Counter(msg)) {
			t.Fatal("a message of the other flow belongs to the stream")
		}
	}
}

// TestSprayedTrainsLoadTheirPorts: other flows avoid busy ports, and the messages of each are counted.
func TestSprayedTrainsLoadTheirPorts(t *testing.T) {
	r := sprayed(t, &flow.Flow{Ends: out4, ID: 1})
	s := r.peer.Spread.Load()
	for i, source := range s.Sources() {
		if s.loads.Bytes(i, r.now) == 0 || s.AppendSent(nil)[i] == 0 {
			t.Errorf("source %d is not in use", source)
		}
	}
}

// TestFullSendBufferHoldsFewSprayedRuns: a source that the flow does not have without spray has no room. Nothing bounds the runs that are held for it.
func TestFullSendBufferHoldsFewSprayedRuns(t *testing.T) {
	f := &flow.Flow{Ends: out4, ID: 1}
	r := sprayed(t, f)
	home := int(r.tx.spray.sources[0])
	full := true
	r.conn.fail = func(run *underlay.Run) error {
		if full && run.Source != home {
			return underlay.ErrSendBufferFull
		}
		return nil
	}
	for range 100 {
		r.transmit(f.Train(45, 1200))
	}
	if n := len(r.tx.queue.held); n != 1 {
		t.Errorf("%d runs are held, want 1", n)
	}
	full = false
	r.pass(time.Millisecond)
	if r.tx.queue.active() || r.allDrops() != 0 {
		t.Errorf("%d runs are held still, %d packets were dropped", len(r.tx.queue.held), r.allDrops())
	}
}

// TestEndingStreamLeavesFromOnePort is about the number of ports that is reported. It runs in a bubble, in which the engine's timer never fires.
func TestEndingStreamLeavesFromOnePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flow.Flow{Ends: out4, ID: 1}
		r := sprayed(t, f)
		_, _ = r.engine.Flows()
		for _, want := range []int{4, 1} {
			r.transmit(f.Train(45, 1200))
			flows, _ := r.observed()
			if len(flows) != 1 || flows[0].Sprayed != want {
				t.Errorf("flows: %+v, want one from %d ports", flows, want)
			}
			r.peer.Spread.Store(NewSpread([]uint8{1, 2, 3, 4})) // ends spraying
		}
	})
}

// TestStreamInLastSessionAsksForNoHandshake: the session that replaces the last one has begun.
func TestStreamInLastSessionAsksForNoHandshake(t *testing.T) {
	f := &flow.Flow{Ends: out4, ID: 1}
	r := sprayed(t, f)
	ours, _ := r.newSession(r.peer, true)
	r.peer.Current.Store(ours)
	r.transmit(f.Train(45, 1200))
	r.now = r.keys.Created() + peer.RekeyAfterTime - int64(time.Millisecond)
	r.tx.spray.last, r.tx.spray.until = r.now, r.now+sprayDrain // the flow has not paused
	for _, want := range []int{0, 1} {
		r.now += int64(time.Millisecond)
		r.sentRaw()
		r.transmit(f.Train(45, 1200))
		if msgs := r.sentRaw(); len(msgs) != 45 || wire.DataReceiver(msgs[0]) != r.keys.Remote() || r.owner.rekeys != want {
			t.Errorf("%d messages, %d handshakes were asked for, want %d", len(msgs), r.owner.rekeys, want)
		}
		r.peer.Current.Store(r.keys) // now no session replaces it
	}
}
