// SPDX-License-Identifier: Apache-2.0

package send

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestTrainLeavesAsOneRun(t *testing.T) {
	r := newRig(t)
	f := flow.Flow{Ends: lanetest.Out4}
	train := f.Train(45, 1380)
	r.transmit(train)
	if n := len(r.Conn.Runs); n != 1 {
		t.Fatalf("got %d runs, want 1", n)
	}
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, train))
}

func TestSmallPacketsToOnePeerShareRun(t *testing.T) {
	r := newRig(t)
	a, b := flow.Flow{Ends: lanetest.Out4, ID: 1}, flow.Flow{Ends: lanetest.Out6, ID: 2}
	elements := [][]byte{a.Next(100), a.Next(100), b.Next(80), a.Next(100)}
	r.transmit(elements...)
	if n := len(r.Conn.Runs); n != 1 {
		t.Errorf("got %d runs, want 1", n)
	}
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, elements...))
}

// TestPacketsLeaveInArrivalOrder compares any mix of trains with a simple model: one packet after the other.
func TestPacketsLeaveInArrivalOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := newRig(t)
	flows := []*flow.Flow{{Ends: lanetest.Out4, ID: 1}, {Ends: lanetest.Out6, ID: 2}, {Ends: lanetest.Out4, ID: 3}}
	for range 100 {
		var elements [][]byte
		for range 1 + rng.IntN(Slots) {
			f := flows[rng.IntN(len(flows))]
			if rng.IntN(4) == 0 {
				elements = append(elements, f.Train(1+rng.IntN(90), 8+rng.IntN(600)))
			} else {
				elements = append(elements, f.Next(8+rng.IntN(1372)))
			}
		}
		r.transmit(elements...)
		lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, elements...))
	}
	if n := r.AllDrops(); n != 0 {
		t.Errorf("got %d drops, want 0", n)
	}
}

// TestTrainsOfTinySegmentsNeedManyRuns is a train whose packets do not fit one send, nor the arena.
func TestTrainsOfTinySegmentsNeedManyRuns(t *testing.T) {
	r := newRig(t)
	payload := make([]byte, 20000)
	train := lanetest.Out4.TCPTrain(1, 1, payload)
	r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP([]byte("before"))), train, flow.WithVnetHeader(lanetest.Out4.UDP([]byte("after"))))
	want := append(lanetest.PacketsOf(t, flow.WithVnetHeader(lanetest.Out4.UDP([]byte("before")))), lanetest.PacketsOf(t, train)...)
	want = append(want, lanetest.Out4.UDP([]byte("after")))
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), want)
}

func TestPaddingIsZeroAndWithinMTU(t *testing.T) {
	r := newRig(t)
	for i := range r.tx.out.batch.slots[0] {
		r.tx.out.batch.slots[0][i] = 0xff // bytes left by an earlier packet
	}
	for size := 29; size <= lane.DefaultMTU; size += 7 {
		r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, size-28))))
		plain := r.Sent()[0]
		if want := wire.PaddedLen(size, lane.DefaultMTU); len(plain) != want {
			t.Fatalf("packet of %d bytes became a plaintext of %d, want %d", size, len(plain), want)
		}
		for i, b := range plain[size:] {
			if b != 0 {
				t.Fatalf("packet of %d bytes: byte %d of the padding is %#x", size, i, b)
			}
		}
	}
}

func TestPartialChecksumsAreCompleted(t *testing.T) {
	r := newRig(t)
	for name, ends := range map[string]flow.Ends{"IPv4": lanetest.Out4, "IPv6": lanetest.Out6} {
		partial := ends.UDPTrain(1000, []byte("one datagram")) // of a single segment: only a checksum to complete
		r.transmit(partial)
		lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), [][]byte{ends.UDP([]byte("one datagram"))})
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestEachUnsendablePacketIsCounted(t *testing.T) {
	good := flow.WithVnetHeader(lanetest.Out4.UDP([]byte("good")))
	train := lanetest.Out4.TCPTrain(0, 100, make([]byte, 300))
	mtu := func(r *rig) { r.Shared.MTU.Store(65535) }
	for _, c := range []struct {
		name     string
		prepare  func(*rig)
		elements [][]byte
		want     drop.Reason
		n        uint64
	}{
		{"no header", nil, [][]byte{{}, make([]byte, 9), make([]byte, 10)}, drop.TXVnetHeader, 3},
		{"no IP", nil, [][]byte{make([]byte, 100)}, drop.TXMalformed, 1},
		{"short IP", nil, [][]byte{good[:len(good)-1]}, drop.TXMalformed, 1},
		{"header contradicts packet", nil, [][]byte{lanetest.VnetHeader(offload.VnetHdr{GSOType: offload.GSOTCPv6, GSOSize: 9}, train[10:])}, drop.TXVnetHeader, 1},
		{"no peer", func(r *rig) {
			r.Shared.Routes.Update(func(e *peer.Editor[*lane.Peer]) { e.RemoveOwner(r.Peer) })
		}, [][]byte{good, train}, drop.TXNoPeer, 4},
		{"no endpoint", func(r *rig) { r.Peer.Endpoint.Store(nil) }, [][]byte{good, train}, drop.TXNoEndpoint, 4},
		{"packet beyond UDP", mtu, [][]byte{flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 65500)))}, drop.TXTooBig, 1},
		{"segment beyond UDP", mtu, [][]byte{lanetest.Out4.TCPTrain(0, 65480, make([]byte, 65490))}, drop.TXTooBig, 2},
		{"wiped", func(r *rig) { r.Keys.Wipe() }, [][]byte{good, train}, drop.TXNoSession, 4},
		{"down", func(r *rig) { r.Lane.Conn.Store(nil) }, [][]byte{good, train}, drop.TXDown, 4},
		{"refused", func(r *rig) {
			r.Conn.Fail = func(*underlay.Run) error { return errors.New("refused") }
		}, [][]byte{good, train}, drop.TXSendError, 4},
		{"too big for the path", func(r *rig) {
			r.Conn.Fail = func(*underlay.Run) error { return fmt.Errorf("sending: %w", underlay.ErrTooBig) }
		}, [][]byte{good, train}, drop.TXTooBig, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			if c.prepare != nil {
				c.prepare(r)
			}
			r.transmit(c.elements...)
			if got := r.Drops(c.want); got != c.n || r.AllDrops() != c.n {
				t.Errorf("got %d drops for %v of %d, want %d", got, c.want, r.AllDrops(), c.n)
			}
			if len(r.Sent()) != 0 || r.Lane.Snapshot().TxPackets != 0 {
				t.Error("something was sent")
			}
			want := lane.PeerPackets{TxDrops: c.n}
			if slices.Contains([]drop.Reason{drop.TXVnetHeader, drop.TXMalformed, drop.TXNoPeer}, c.want) { // no peer to count for
				want = lane.PeerPackets{}
			}
			if got := r.Peer.Packets(); got != want {
				t.Errorf("the peer's: got %+v, want %+v", got, want)
			}
		})
	}
}

func TestFailedRunDropsNoOther(t *testing.T) {
	r := newRig(t)
	r.Conn.Fail = func(run *underlay.Run) error {
		if run.Segments == 5 {
			return errors.New("refused")
		}
		return nil
	}
	f := flow.Flow{Ends: lanetest.Out4}
	elements := [][]byte{f.Next(100), f.Train(5, 200), f.Train(6, 300)}
	r.transmit(elements...)
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, elements[0], elements[2]))
	if r.Drops(drop.TXSendError) != 5 || r.Lane.Snapshot().TxPackets != 7 {
		t.Errorf("%d drops, %d packets", r.Drops(drop.TXSendError), r.Lane.Snapshot().TxPackets)
	}
}

func TestPeerWithoutSessionDoesNotSplitBatch(t *testing.T) {
	r := newRig(t)
	_, o := r.NewPeer("10.0.0.3/32") // has an endpoint, and no session
	live, lost := flow.Flow{Ends: lanetest.Out4, ID: 1}, flow.Flow{Ends: lanetest.Out4, ID: 2}
	lost.Dst = netip.MustParseAddrPort("10.0.0.3:2000")
	var trains [][]byte
	for range Slots / 2 {
		trains = append(trains, live.Next(100), lost.Next(100))
	}
	r.transmit(trains...)
	if len(o.Staged) != Slots/2 {
		t.Errorf("%d packets were staged, want %d", len(o.Staged), Slots/2)
	}
	if r.Conn.Sends != 1 || len(lanetest.Unpadded(t, r.Sent())) != Slots/2 {
		t.Errorf("%d calls of Send, want one with %d packets", r.Conn.Sends, Slots/2)
	}
}

// TestTrainsWithoutSessionAreStagedInOrder lets the session of a peer end within a batch, when the train of another is staged.
func TestTrainsWithoutSessionAreStagedInOrder(t *testing.T) {
	r := newRig(t)
	_, other := r.NewPeer("10.9.0.0/16")
	lost := flow.WithVnetHeader(flow.Ends{Src: lanetest.Out4.Src, Dst: netip.MustParseAddrPort("10.9.1.1:7")}.UDP([]byte("staged")))
	a := flow.Flow{Ends: lanetest.Out4}
	other.OnStage = func() *session.Keypair {
		if len(r.Conn.Runs) != 0 {
			t.Error("the batch was sent for a peer that has no packets in it")
		}
		r.Peer.Current.Store(nil)
		return nil
	}
	r.Owner.OnStage = func() *session.Keypair {
		if len(r.Conn.Runs) != 1 {
			t.Error("a train was staged before earlier packets to the peer had left")
		}
		return nil
	}
	r.transmit(a.Next(50), lost, a.Next(50))
	if len(other.Staged) != 1 || string(other.Staged[0]) != string(lost) || len(r.Owner.Staged) != 1 {
		t.Fatalf("staged %d and %d trains, want 1 of each peer", len(other.Staged), len(r.Owner.Staged))
	}
	if n := len(r.Sent()); n != 1 {
		t.Errorf("%d packets left, want 1", n)
	}
}

func TestExpiredSessionSendsNothing(t *testing.T) {
	r := newRig(t)
	r.Now += peer.RejectAfterTime
	r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP(nil)))
	if len(r.Owner.Staged) != 1 || r.Conn.Count != 0 {
		t.Errorf("staged %d, sent %d; want it staged", len(r.Owner.Staged), r.Conn.Count)
	}
}

func TestSendingRequestsRekeyAfterTwoMinutes(t *testing.T) {
	for _, c := range []struct {
		initiator bool
		age       time.Duration
		want      int
	}{{true, 120*time.Second - 1, 0}, {true, 120 * time.Second, 1}, {false, 179 * time.Second, 0}} {
		r := newRig(t)
		r.Keys, r.Remote = r.NewSession(r.Peer, c.initiator)
		r.Peer.Current.Store(r.Keys)
		r.Now += int64(c.age)
		r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP(nil)))
		if r.Owner.Rekeys != c.want {
			t.Errorf("initiator %v, age %v: asked %d times, want %d", c.initiator, c.age, r.Owner.Rekeys, c.want)
		}
	}
}

func TestRouteChangesApplyAtOnce(t *testing.T) {
	r := newRig(t)
	element := flow.WithVnetHeader(lanetest.Out4.UDP(nil))
	r.transmit(element)
	_, next := r.NewPeer(out4Prefix().String())
	r.transmit(element)
	if sent := len(r.Sent()); sent != 1 || len(next.Staged) != 1 {
		t.Errorf("got %d packets to the old peer, %d to the new one; want 1 each", sent, len(next.Staged))
	}
	r.Shared.Routes.Update(func(e *peer.Editor[*lane.Peer]) { e.Add(out4Prefix(), r.Peer) })
	r.transmit(element)
	if sent := len(r.Sent()); sent != 1 {
		t.Error("the route's return was not seen")
	}
}

func out4Prefix() netip.Prefix { return netip.PrefixFrom(lanetest.Out4.Dst.Addr(), 32) }

func TestSentBytesCountWireGuardMessages(t *testing.T) {
	r := newRig(t)
	r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 4))), lanetest.Out4.TCPTrain(0, 100, make([]byte, 250)))
	_, tx := r.Peer.Traffic()
	if want := uint64(32+32) + 2*(144+32) + 96 + 32; tx != want {
		t.Errorf("got %d bytes sent, want %d", tx, want)
	}
	s := r.Lane.Snapshot()
	if s.TxPackets != 4 || s.TxTrains != 2 || s.TxBytes != 32+140+140+90 || s.TxRuns != 2 {
		t.Errorf("got stats %+v, want TxPackets 4, TxTrains 2, TxBytes %v, TxRuns 2", s, 32+140+140+90)
	}
	if got, want := r.Peer.Packets(), (lane.PeerPackets{Tx: 4}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestTrainLeavesIfSessionExistsWhenStaged has a session that begins after the lane has looked for one.
func TestTrainLeavesIfSessionExistsWhenStaged(t *testing.T) {
	r := newRig(t)
	f := flow.Flow{Ends: lanetest.Out4}
	r.Peer.Current.Store(nil)
	r.Owner.OnStage = func() *session.Keypair { return r.Keys }
	single, train := f.Next(100), f.Train(5, 1000)
	want := append(lanetest.PacketsOf(t, single), lanetest.PacketsOf(t, train)...)
	r.transmit(single, train)
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), want)
	if len(r.Owner.Staged) != 0 {
		t.Errorf("%d trains are staged", len(r.Owner.Staged))
	}
}
