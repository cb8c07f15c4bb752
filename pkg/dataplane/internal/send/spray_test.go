// SPDX-License-Identifier: Apache-2.0

package send

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
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
	s := lane.NewSpread([]uint8{1, 2, 3, 4})
	r.Peer.Spread.Store(s.Sprayed(lane.Spray{Ports: 4, Lanes: 1}, func(int) uint16 { return 0 }))
}

// elephant sends one flow at 4 Gbit/s for 300 ms. It returns the numbers of messages of streams and of others.
func (r *rig) elephant(f *flow.Flow) (streamed, other int) {
	for range 300 {
		r.transmit(f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200), f.Train(45, 1200))
		for _, msg := range r.SentRaw() {
			if session.IsStream(wire.Counter(msg)) {
				streamed++
			} else {
				other++
			}
		}
		r.Now += int64(time.Millisecond)
	}
	return streamed, other
}

// TestEachSessionAgreesOnSpray: the peer may be another program in the next session, which knows no streams.
func TestEachSessionAgreesOnSpray(t *testing.T) {
	r := newRig(t)
	r.spraying()
	f := &flow.Flow{Ends: lanetest.Out4, ID: 1}
	if streamed, _ := r.elephant(f); streamed != 0 {
		t.Errorf("%d messages of streams before the peer's hello", streamed)
	}
	r.Keys.AgreeStreams(true)
	if streamed, _ := r.elephant(f); streamed == 0 {
		t.Error("no message of a stream after the peer's hello")
	}
	ours, _ := r.NewSession(r.Peer, true)
	r.Peer.Current.Store(ours)
	r.elephant(f) // the stream ends in its session
	if streamed, other := r.elephant(f); streamed != 0 || other == 0 {
		t.Errorf("%d messages of streams in a new session before the peer's hello", streamed)
	}
	ours.AgreeStreams(false)
	if streamed, _ := r.elephant(f); streamed != 0 {
		t.Errorf("%d messages of streams after a hello that announces none", streamed)
	}
}

func TestSprayedPacketsCountWhenSent(t *testing.T) {
	r := newRig(t)
	r.spraying()
	r.Keys.AgreeStreams(true)
	f := &flow.Flow{Ends: lanetest.Out4, ID: 1}
	streamed, _ := r.elephant(f)
	if n := r.Lane.Snapshot().TxSprayed; streamed == 0 || n != uint64(streamed) {
		t.Errorf("counted %d of %d messages of streams", n, streamed)
	}
	r.Lane.Conn.Store(nil)
	r.transmit(f.Train(45, 1200))
	if n := r.Lane.Snapshot().TxSprayed; r.Drops(drop.TXDown) != 45 || n != uint64(streamed) {
		t.Errorf("counted %d messages of streams, of which %d were dropped, want %d", n, r.Drops(drop.TXDown), streamed)
	}
}

// TestPacketsOfAllSizesAreSprayed: a packet larger than the path MTU, which IPv6 has to carry, must not overtake others.
func TestPacketsOfAllSizesAreSprayed(t *testing.T) {
	r := newRig(t)
	r.spraying()
	r.Keys.AgreeStreams(true)
	f := &flow.Flow{Ends: lanetest.Out6, ID: 1}
	r.elephant(f)
	r.Peer.SetPathMTU(1100)
	for _, size := range []int{1000, 1200, 1000} {
		r.transmit(f.Train(10, size))
		for _, msg := range r.SentRaw() {
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
	r.Keys.AgreeStreams(true)
	f := &flow.Flow{Ends: lanetest.Out4, ID: 1}
	r.elephant(f)
	r.Keys.Wipe()
	ours, _ := r.NewSession(r.Peer, true)
	r.Peer.Current.Store(ours)
	ours.AgreeStreams(true)
	before := r.AllDrops()
	r.elephant(f)
	if n := r.AllDrops() - before; n != 0 {
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
	r.Keys.AgreeStreams(true)
	f := &flow.Flow{Ends: lanetest.Out4, ID: 1}
	r.elephant(f)
	r.Peer.SetPathMTU(1100)
	seen, streamed := map[uint64]bool{}, 0
	for range 3 {
		var trains [][]byte
		for _, size := range []int{1000, 1000, 1000, 1000, 1000, 1000, 1200, 1200, 900} {
			trains = append(trains, withoutDF(f.Train(1, size)))
			for port := range uint16(8) {
				other := flow.Ends{Src: netip.AddrPortFrom(lanetest.Out4.Src.Addr(), 7000+port), Dst: lanetest.Out4.Dst}
				trains = append(trains, flow.WithVnetHeader(other.UDP(make([]byte, 972))))
			}
		}
		r.transmit(append(trains, withoutDF(f.Train(3, 1000)), withoutDF(f.Train(3, 1200)))...)
		for _, msg := range r.SentRaw() {
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

func TestSlowerFlowIsNoLongerSprayed(t *testing.T) {
	r := newRig(t)
	r.spraying()
	r.Keys.AgreeStreams(true)
	f := &flow.Flow{Ends: lanetest.Out4, ID: 1}
	r.elephant(f)
	for range 500 { // 12 MB/s
		r.SentRaw()
		r.transmit(f.Train(10, 1200))
		r.Now += int64(time.Millisecond)
	}
	for _, msg := range r.SentRaw() {
		if session.IsStream(wire.Counter(msg)) {
			t.Fatal("a flow of 12 MB/s is sprayed")
		}
	}
}

// TestStreamOfStoppedFlowEnds: spray is turned off just as the flow stops, and other trains go to another peer.
func TestStreamOfStoppedFlowEnds(t *testing.T) {
	r := newRig(t)
	r.spraying()
	r.Keys.AgreeStreams(true)
	other, _ := r.NewPeer("10.0.0.9/32")
	ours, _ := r.NewSession(other, true)
	other.Current.Store(ours)
	small := &flow.Flow{Ends: flow.Ends{Src: lanetest.Out4.Src, Dst: netip.MustParseAddrPort("10.0.0.9:5")}, ID: 2}
	for _, off := range []bool{false, true} {
		r.elephant(&flow.Flow{Ends: lanetest.Out4, ID: 1})
		if s := r.tx.spray.stream.Keys(); s != r.Keys {
			t.Fatalf("the stream is one of %v, want %v", s, r.Keys)
		}
		if off {
			r.Peer.Spread.Store(lane.NewSpread([]uint8{1, 2, 3, 4}))
		}
		r.Now += int64(spread.DefaultGap)
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
	r.Keys.AgreeStreams(true)
	if streamed, _ := r.elephant(f); streamed == 0 {
		t.Fatal("the flow is not sprayed")
	}
	return r
}

// TestFlowWithSameHashIsNotSprayed gives the sprayed flow the hash of another one.
func TestFlowWithSameHashIsNotSprayed(t *testing.T) {
	r := sprayed(t, &flow.Flow{Ends: lanetest.Out4, ID: 1})
	other := &flow.Flow{Ends: flow.Ends{Src: netip.AddrPortFrom(lanetest.Out4.Src.Addr(), 7000), Dst: lanetest.Out4.Dst}, ID: 2}
	r.transmit(other.Train(10, 1000))
	r.tx.spray.hash = r.tx.hash
	r.SentRaw()
	r.transmit(other.Train(10, 1000))
	for _, msg := range r.SentRaw() {
		if session.IsStream(wire.Counter(msg)) {
			t.Fatal("a message of the other flow belongs to the stream")
		}
	}
}

// TestSprayedTrainsLoadTheirPorts: other flows avoid busy ports, and the messages of each are counted.
func TestSprayedTrainsLoadTheirPorts(t *testing.T) {
	r := sprayed(t, &flow.Flow{Ends: lanetest.Out4, ID: 1})
	s := r.Peer.Spread.Load()
	for i, source := range s.Sources() {
		if s.Loads.Bytes(i, r.Now) == 0 || s.AppendSent(nil)[i] == 0 {
			t.Errorf("source %d is not in use", source)
		}
	}
}

// TestFullSendBufferHoldsFewSprayedRuns: a source that the flow does not have without spray has no room. Nothing bounds the runs that are held for it.
func TestFullSendBufferHoldsFewSprayedRuns(t *testing.T) {
	f := &flow.Flow{Ends: lanetest.Out4, ID: 1}
	r := sprayed(t, f)
	home := int(r.tx.spray.sources[0])
	full := true
	r.Conn.Fail = func(run *underlay.Run) error {
		if full && run.Source != home {
			return underlay.ErrSendBufferFull
		}
		return nil
	}
	for range 100 {
		r.transmit(f.Train(45, 1200))
	}
	if n := len(r.tx.out.held.list); n != 1 {
		t.Errorf("%d runs are held, want 1", n)
	}
	full = false
	r.pass(time.Millisecond)
	if r.tx.active() || r.AllDrops() != 0 {
		t.Errorf("%d runs are held still, %d packets were dropped", len(r.tx.out.held.list), r.AllDrops())
	}
}

// TestEndingStreamLeavesFromOnePort is about the number of ports that is reported. It runs in a bubble, in which the engine's timer never fires.
func TestEndingStreamLeavesFromOnePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flow.Flow{Ends: lanetest.Out4, ID: 1}
		r := sprayed(t, f)
		_, _ = r.Flows.Flows()
		for _, want := range []int{4, 1} {
			r.transmit(f.Train(45, 1200))
			flows, _ := r.Observed()
			if len(flows) != 1 || flows[0].Sprayed != want {
				t.Errorf("flows: %+v, want one from %d ports", flows, want)
			}
			r.Peer.Spread.Store(lane.NewSpread([]uint8{1, 2, 3, 4})) // ends spraying
		}
	})
}

// TestStreamInLastSessionAsksForNoHandshake: the session that replaces the last one has begun.
func TestStreamInLastSessionAsksForNoHandshake(t *testing.T) {
	f := &flow.Flow{Ends: lanetest.Out4, ID: 1}
	r := sprayed(t, f)
	ours, _ := r.NewSession(r.Peer, true)
	r.Peer.Current.Store(ours)
	r.transmit(f.Train(45, 1200))
	r.Now = r.Keys.Created() + peer.RekeyAfterTime - int64(time.Millisecond)
	r.tx.spray.last, r.tx.spray.until = r.Now, r.Now+sprayDrain // the flow has not paused
	for _, want := range []int{0, 1} {
		r.Now += int64(time.Millisecond)
		r.SentRaw()
		r.transmit(f.Train(45, 1200))
		if msgs := r.SentRaw(); len(msgs) != 45 || wire.DataReceiver(msgs[0]) != r.Keys.Remote() || r.Owner.Rekeys != want {
			t.Errorf("%d messages, %d handshakes were asked for, want %d", len(msgs), r.Owner.Rekeys, want)
		}
		r.Peer.Current.Store(r.Keys) // now no session replaces it
	}
}
