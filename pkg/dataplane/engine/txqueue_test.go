// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// slowBuffer is a send buffer of the rig's port: it accepts that many more runs in group 0.
type slowBuffer struct{ room int }

func (b *slowBuffer) fail(r *underlay.Run) error {
	if r.Group > 0 {
		return nil
	}
	if b.room == 0 {
		return underlay.ErrSendBufferFull
	}
	b.room--
	return nil
}

// slowRig is a rig whose send buffer has room for so many runs.
func slowRig(t *testing.T, room int) (*rig, *slowBuffer) {
	t.Helper()
	r, b := newRig(t), &slowBuffer{room: room}
	r.conn.fail = b.fail
	return r, b
}

// pass gives the transmitter d of time, and one turn of its loop.
func (r *rig) pass(d time.Duration) {
	r.now += int64(d)
	r.tx.sendQueued()
}

func TestFullSendBufferLosesAndReordersNothing(t *testing.T) {
	r, b := slowRig(t, 1)
	f := flow.Flow{Ends: out4}
	var want [][]byte
	send := func(trains ...[]byte) {
		want = append(want, packetsOf(t, trains...)...)
		r.transmit(trains...)
	}
	send(f.Train(10, 1000)) // the buffer takes it
	send(f.Train(20, 1000)) // refused after it was sealed
	send(f.Next(100), f.Train(5, 900), f.Next(8))
	r.pass(time.Millisecond)
	if held, waiting := len(r.tx.queue.held), r.tx.queue.Len(); held != 1 || waiting != 3 {
		t.Fatalf("%d runs are held, %d trains wait, want 1 and 3", held, waiting)
	}
	b.room = 2
	r.pass(time.Millisecond) // the held run, and one of the waiting trains
	b.room = 100
	send(f.Next(50))
	r.pass(time.Millisecond)
	r.pass(time.Millisecond)
	samePackets(t, unpadded(t, r.sent()), want)
	if n := r.allDrops(); n != 0 {
		t.Errorf("%d packets were dropped", n)
	}
	if r.tx.queue.active() || r.tx.queue.buffers.used != 0 {
		t.Errorf("the queue is not empty: %d bytes of buffers are used", r.tx.queue.buffers.used)
	}
}

// TestFullSendBufferStopsNoOtherPeer has a second peer in another send group.
func TestFullSendBufferStopsNoOtherPeer(t *testing.T) {
	r, _ := slowRig(t, 0)
	other, _ := r.newPeer("10.0.0.3/32")
	keys, _ := r.newSession(other, true)
	other.Current.Store(keys)
	other.SendGroup.Store(1)
	slow, fast := flow.Flow{Ends: out4}, flow.Flow{Ends: out4, ID: 1}
	fast.Dst = netip.MustParseAddrPort("10.0.0.3:2000")
	const rounds = 50
	for range rounds {
		r.transmit(slow.Train(3, 1000), fast.Train(4, 1000))
	}
	sent := 0
	for _, run := range r.conn.taken() {
		sent += len(run)
	}
	if sent != rounds*4 {
		t.Errorf("%d packets to the other peer were sent, want %d", sent, rounds*4)
	}
	if got := other.Packets().Tx; got != rounds*4 {
		t.Errorf("%d packets to the other peer are counted, want %d", got, rounds*4)
	}
	if r.owner.full == 0 {
		t.Error("nobody has called SendBufferFull")
	}
}

// TestPartlySentRunContinues has a send buffer that takes the first datagrams of a run, as sockets without GSO do.
func TestPartlySentRunContinues(t *testing.T) {
	r := newRig(t)
	f := flow.Flow{Ends: out4}
	train := f.Train(10, 500)
	r.transmit(train)
	whole := r.conn.taken()[0]
	accept := 4
	r.conn.fail = func(run *underlay.Run) error {
		if accept < run.Segments {
			run.Sent = accept
			return underlay.ErrSendBufferFull
		}
		return nil
	}
	train = f.Train(10, 500)
	r.transmit(train)
	accept = 10
	r.pass(time.Millisecond)
	rest := r.conn.taken()
	if len(rest) != 1 || len(rest[0]) != 6 || len(rest[0][0]) != len(whole[0]) {
		t.Fatalf("the rest of the run is %d runs, want one of 6 datagrams", len(rest))
	}
	packets := packetsOf(t, train)[4:]
	var got [][]byte
	for _, msg := range rest[0] {
		got = append(got, r.open(msg))
	}
	samePackets(t, unpadded(t, got), packets)
}

// standingTX lets a queue stand for a second, while the send buffer takes one train in 10 ms and two arrive. It returns the packets sent.
func (r *rig) standingTX(b *slowBuffer, ecn packet.ECN) (sent [][]byte, offered int) {
	f := flow.Flow{Ends: out6}
	for range 100 {
		for range 2 {
			train := f.Train(5, 1000)
			setECN(train, ecn)
			r.transmit(train)
			offered += 5
		}
		b.room = 1
		r.pass(10 * time.Millisecond)
		sent = append(sent, unpadded(r.tb, r.sent())...)
	}
	b.room = 1 << 30
	for r.tx.queue.active() {
		r.pass(10 * time.Millisecond)
		sent = append(sent, unpadded(r.tb, r.sent())...)
	}
	return sent, offered
}

// setECN sets the ECN field of an IPv6 train.
func setECN(train []byte, ecn packet.ECN) {
	ip := train[10:]
	ip[1] = ip[1]&^0x30 | byte(ecn)<<4
}

func TestStandingTransmitQueueMarksECNCapablePackets(t *testing.T) {
	r, b := slowRig(t, 0)
	sent, offered := r.standingTX(b, packet.ECT0)
	marks := 0
	for _, p := range sent {
		if packet.ECNOf(p) == packet.CE {
			marks++
		}
	}
	if len(sent) != offered || marks < 10 || marks > offered/2 {
		t.Errorf("of %d packets %d were sent, %d with a mark", offered, len(sent), marks)
	}
	if counted := r.engine.Stats().Lanes[0].TxMarks; counted != uint64(marks) {
		t.Errorf("%d marks are counted, want %d", counted, marks)
	}
}

func TestStandingTransmitQueueDropsSinglePackets(t *testing.T) {
	r, b := slowRig(t, 0)
	sent, offered := r.standingTX(b, packet.NotECT)
	dropped := int(r.drops(drop.TXCongestion))
	if dropped < 2 || dropped > offered/10 || len(sent)+dropped != offered {
		t.Errorf("of %d packets %d were sent, %d dropped", offered, len(sent), dropped)
	}
	if got := r.peer.Packets().TxDrops; got != uint64(dropped) {
		t.Errorf("%d drops are counted for the peer, want %d", got, dropped)
	}
}

// TestFullTransmitQueueDropsFromFattestFlow fills the queue with one flow while another sends little.
func TestFullTransmitQueueDropsFromFattestFlow(t *testing.T) {
	r, b := slowRig(t, 0)
	fat, thin := flow.Flow{Ends: out4}, flow.Flow{Ends: out6, ID: 1}
	offered := 0
	for r.drops(drop.TXQueueFull) == 0 {
		r.transmit(fat.Train(40, 1400), thin.Next(8))
		offered++
	}
	if used := r.tx.queue.buffers.used; used > r.tx.queue.limit+bufferSizes[len(bufferSizes)-1] {
		t.Errorf("the queue uses %d bytes, limit %d", used, r.tx.queue.limit)
	}
	b.room = 1 << 30
	var sent [][]byte
	for r.tx.queue.active() {
		r.pass(time.Millisecond)
		sent = append(sent, unpadded(t, r.sent())...)
	}
	var check flow.Checker
	check.Lossy = true
	thinSent := 0
	for _, p := range sent {
		if err := check.Take(flow.WithVnetHeader(p)); err != nil {
			t.Fatal(err)
		}
		if packet.Destination(p) == out6.Dst.Addr() {
			thinSent++
		}
	}
	if thinSent != offered {
		t.Errorf("%d packets of the thin flow were sent, want all %d", thinSent, offered)
	}
	if total := len(sent) + int(r.allDrops()); total != offered*41 {
		t.Errorf("%d packets were sent or dropped, want %d", total, offered*41)
	}
}

func TestDetachedPortDropsWhatWaits(t *testing.T) {
	r, _ := slowRig(t, 0)
	f := flow.Flow{Ends: out4}
	r.transmit(f.Train(4, 1000))
	r.transmit(f.Train(3, 1000))
	r.tx.lane.conn.Store(nil)
	r.pass(time.Millisecond)
	if n := r.drops(drop.TXDown); n != 7 || r.tx.queue.active() {
		t.Errorf("%d packets were dropped, want 7; the queue is active: %v", n, r.tx.queue.active())
	}
}

// TestExpiredSessionStagesWhatWaits ends the session while trains wait.
func TestExpiredSessionStagesWhatWaits(t *testing.T) {
	r, b := slowRig(t, 0)
	f := flow.Flow{Ends: out4}
	r.transmit(f.Train(4, 1000)) // sealed
	r.transmit(f.Next(100), f.Train(3, 1000))
	r.peer.Current.Store(nil)
	b.room = 100
	r.pass(time.Millisecond)
	if len(r.owner.staged) != 2 || len(r.sent()) != 4 {
		t.Errorf("%d trains are staged, want 2", len(r.owner.staged))
	}
}

func TestLargestTrainWaits(t *testing.T) {
	r, b := slowRig(t, 0)
	f := flow.Flow{Ends: out4}
	r.transmit(f.Next(100))
	const headers = packet.IPv4HeaderLen + packet.TCPHeaderLen
	train := f.TCPTrain(100, 65535-headers, make([]byte, 65535-headers))
	if len(train) != tun.MaxTrain {
		t.Fatalf("the train has %d bytes, want %d", len(train), tun.MaxTrain)
	}
	r.transmit(train)
	b.room = 100
	r.pass(time.Millisecond)
	if r.tx.queue.active() || r.drops(drop.TXTooBig) != 1 {
		t.Errorf("the train waits still, or was sent: %d drops", r.allDrops())
	}
}

// TestSendGroupChangeMovesWhatWaits gives the peer another send group while the former one's buffer is full, and stays so.
func TestSendGroupChangeMovesWhatWaits(t *testing.T) {
	r, _ := slowRig(t, 0)
	f := flow.Flow{Ends: out4}
	var want [][]byte
	send := func(train []byte) {
		want = append(want, packetsOf(t, train)...)
		r.transmit(train)
	}
	send(f.Train(4, 1000)) // held
	send(f.Train(5, 1000)) // in the queue
	r.peer.SendGroup.Store(1)
	send(f.Train(3, 1000))
	if sent := len(r.conn.taken()); sent != 0 {
		t.Fatalf("%d runs were sent before older ones", sent)
	}
	r.pass(time.Millisecond)
	send(f.Next(100))
	r.pass(time.Millisecond)
	samePackets(t, unpadded(t, r.sent()), want)
}

// TestFlowsThatWaitShareNoPlace has flows to a blocked peer in all places but a few, and one to another peer.
func TestFlowsThatWaitShareNoPlace(t *testing.T) {
	r, _ := slowRig(t, 0)
	other, _ := r.newPeer("10.0.0.3/32")
	keys, _ := r.newSession(other, true)
	other.Current.Store(keys)
	other.SendGroup.Store(1)
	for port := range uint16(2 * txFlows) {
		f := flow.Flow{Ends: out4}
		f.Src = netip.AddrPortFrom(f.Src.Addr(), 1000+port)
		r.transmit(f.Next(8))
	}
	if r.drops(drop.TXQueueFull) == 0 || r.tx.queue.Len() < txFlows/2 {
		t.Errorf("%d flows wait, %d packets were dropped, want half of all places taken, and drops", r.tx.queue.Len(), r.drops(drop.TXQueueFull))
	}
	for port := range uint16(200) {
		f := flow.Flow{Ends: out4}
		f.Src, f.Dst = netip.AddrPortFrom(f.Src.Addr(), 1000+port), netip.MustParseAddrPort("10.0.0.3:2000")
		r.transmit(f.Next(8))
	}
	if got := other.Packets().Tx; got != 200 {
		t.Errorf("%d packets were sent to the other peer, want 200", got)
	}
}
