// SPDX-License-Identifier: Apache-2.0

package send

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestProgressChangesWhenOldestHeldRunLeaves(t *testing.T) {
	r, b := slowRig(t, 0)
	sent := 0 // datagrams that the buffer takes of a run that it refuses
	r.Conn.Fail = func(run *underlay.Run) error {
		err := b.fail(run)
		if err != nil {
			run.Sent, sent = sent, 0
		}
		return err
	}
	f := flow.Flow{Ends: lanetest.Out4}
	train := func() { r.transmit(f.Train(5, 1000)) }
	turn := func() { r.pass(time.Millisecond) }
	_, _, last := r.Lane.Progress()
	for _, step := range []struct {
		name             string
		do               func()
		working, changes bool
	}{
		{"nothing was sent", turn, false, false},
		{"a run is refused", train, true, true},
		{"and again", turn, true, false},
		{"a train waits behind it", train, true, false},
		{"a part of the run leaves", func() { sent = 2; turn() }, true, true},
		{"its rest is refused", turn, true, false},
		{"the train takes its place", func() { b.room = 1; turn() }, true, true},
		{"and is refused", turn, true, false},
		{"there is room", func() { b.room = 100; turn() }, false, true},
		{"more is sent", train, false, false},
	} {
		step.do()
		_, _, now := r.Lane.Progress()
		if now.Working() != step.working || (now != last) != step.changes {
			t.Errorf("%s: got %d after %d, want working %v, changed %v", step.name, now, last, step.working, step.changes)
		}
		last = now
	}
}

// TestProgressShowsOneFullSendBufferOfTwo: the other one has room for a run in each turn, and always less than is sent.
func TestProgressShowsOneFullSendBufferOfTwo(t *testing.T) {
	r := newRig(t)
	other, _ := r.NewPeer("10.0.0.3/32")
	keys, _ := r.NewSession(other, true)
	other.Current.Store(keys)
	other.SendGroup.Store(1)
	room := 0
	r.Conn.Fail = func(run *underlay.Run) error {
		if run.Group == 0 || room == 0 {
			return underlay.ErrSendBufferFull
		}
		room--
		return nil
	}
	moving, full := flow.Flow{Ends: lanetest.Out4, ID: 1}, flow.Flow{Ends: lanetest.Out4}
	moving.Dst = netip.MustParseAddrPort("10.0.0.3:2000")
	r.transmit(moving.Train(5, 1000))
	r.transmit(full.Train(5, 1000))
	var last lane.Progress
	for turn := range 20 {
		r.transmit(moving.Train(5, 1000))
		room = 1
		r.pass(time.Millisecond)
		_, _, now := r.Lane.Progress()
		if turn > 0 && (now != last || !now.Working()) {
			t.Fatalf("turn %d: got %d after %d, want no change", turn, now, last)
		}
		last = now
	}
	if got := other.Packets().Tx; got < 20*4 {
		t.Errorf("%d packets were sent through the other send buffer, want at least 80", got)
	}
}

func TestClosedLaneReportsNoHeldRun(t *testing.T) {
	r, _ := slowRig(t, 0)
	r.transmit((&flow.Flow{Ends: lanetest.Out4}).Train(5, 1000))
	r.tx.drain()
	if _, _, queue := r.Lane.Progress(); queue.Working() {
		t.Error("the queue of a lane that has ended holds a run")
	}
}
