// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestProgressChangesWithEachBatch(t *testing.T) {
	var p progress
	last := Progress(p.n.Load())
	for i, step := range []struct {
		do      func()
		working bool
		changes bool
	}{
		{p.rest, false, false}, {p.work, true, true}, {p.work, true, true}, {p.rest, false, true}, {p.rest, false, false}, {p.work, true, true},
	} {
		step.do()
		now := Progress(p.n.Load())
		if now.Working() != step.working || (now != last) != step.changes {
			t.Errorf("step %d: got %d after %d, want working %v, changed %v", i, now, last, step.working, step.changes)
		}
		last = now
	}
}

func TestProgressChangesWhenOldestHeldRunLeaves(t *testing.T) {
	r, b := slowRig(t, 0)
	sent := 0 // datagrams that the buffer takes of a run that it refuses
	r.conn.fail = func(run *underlay.Run) error {
		err := b.fail(run)
		if err != nil {
			run.Sent, sent = sent, 0
		}
		return err
	}
	f := flow.Flow{Ends: out4}
	train := func() { r.transmit(f.Train(5, 1000)) }
	turn := func() { r.pass(time.Millisecond) }
	_, _, last := r.engine.Progress(0)
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
		_, _, now := r.engine.Progress(0)
		if now.Working() != step.working || (now != last) != step.changes {
			t.Errorf("%s: got %d after %d, want working %v, changed %v", step.name, now, last, step.working, step.changes)
		}
		last = now
	}
}

// TestProgressShowsOneFullSendBufferOfTwo: the other one has room for a run in each turn, and always less than is sent.
func TestProgressShowsOneFullSendBufferOfTwo(t *testing.T) {
	r := newRig(t)
	other, _ := r.newPeer("10.0.0.3/32")
	keys, _ := r.newSession(other, true)
	other.Current.Store(keys)
	other.SendGroup.Store(1)
	room := 0
	r.conn.fail = func(run *underlay.Run) error {
		if run.Group == 0 || room == 0 {
			return underlay.ErrSendBufferFull
		}
		room--
		return nil
	}
	moving, full := flow.Flow{Ends: out4, ID: 1}, flow.Flow{Ends: out4}
	moving.Dst = netip.MustParseAddrPort("10.0.0.3:2000")
	r.transmit(moving.Train(5, 1000))
	r.transmit(full.Train(5, 1000))
	var last Progress
	for turn := range 20 {
		r.transmit(moving.Train(5, 1000))
		room = 1
		r.pass(time.Millisecond)
		_, _, now := r.engine.Progress(0)
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
	r.transmit((&flow.Flow{Ends: out4}).Train(5, 1000))
	r.tx.drain()
	if _, _, queue := r.engine.Progress(0); queue.Working() {
		t.Error("the queue of a lane that has ended holds a run")
	}
}
