// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// TestSessionChangesNeitherLoseNorReorder is the concurrency of everything: four lanes, many flows both ways,
// and new sessions as fast as the responder's flood limit lets them, initiated by either side in turn. It does without
// spreading: where threads wait for a core longer than spread.DefaultGap, flows may change their port, and their lane.
func TestSessionChangesNeitherLoseNorReorder(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{Lanes: 4, Depth: 4096})
	off := config.SpreadOff
	a.Apply(config.Device{Settings: config.Settings{Spread: &off}})
	b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
	talkOnAnyLane(t, a, b)
	load := devicetest.NewLoad(t, a, b, 8)
	done := make(chan struct{})
	var rekeys int
	var driver sync.WaitGroup
	driver.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				rekey(t, a, b, load.Drain)
				load.Drain() // a message may be older than two sessions, but not in this protocol
				rekeys++
				a, b = b, a
			}
		}
	})
	for range 5 {
		load.Run(400)
	}
	close(done)
	driver.Wait()
	t.Logf("%d packets, %d sessions", load.Packets(), rekeys)
	if rekeys < 3 {
		t.Errorf("only %d sessions", rekeys)
	}
}

// talkOnAnyLane starts a session between hosts with several lanes. Messages of the slow path arrive on lane 0.
func talkOnAnyLane(t *testing.T, a, b *devicetest.Host) {
	t.Helper()
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	b.Next()
	b.Await("the session is confirmed", func() bool {
		current, _ := b.PeerOf(a.Public()).Sessions()
		return current != nil
	})
}

// rekey replaces the session between two hosts. Before it tries again it calls drain: on a machine that is slow enough, the
// try before may yet succeed.
func rekey(t *testing.T, a, b *devicetest.Host, drain func()) {
	t.Helper()
	before, _ := a.PeerOf(b.Public()).Sessions()
	for tries := 0; ; tries++ {
		a.PeerOf(b.Public()).Initiate()
		for range 25 {
			time.Sleep(time.Millisecond)
			ours, _ := a.PeerOf(b.Public()).Sessions()
			theirs, _ := b.PeerOf(a.Public()).Sessions()
			if ours != before && ours != nil && theirs != nil && ours.Remote() == theirs.Local() {
				return
			}
		}
		if tries > 1000 || t.Failed() {
			t.Error("no new session")
			return
		}
		drain()
	}
}

// TestManyRekeysLoseNoPackets lets the protocol do it by itself: every round begins when a new session is due.
func TestManyRekeysLoseNoPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{Lanes: 2, Depth: 4096})
		talkOnAnyLane(t, a, b)
		load := devicetest.NewLoad(t, a, b, 4)
		for range 10 {
			time.Sleep(121 * time.Second)
			before := a.PeerStatus(b).LastHandshake
			load.Run(100)
			a.Await("there is a new session", func() bool { return a.PeerStatus(b).LastHandshake.After(before) })
		}
		wantNoDrops(t, a, b)
	})
}

// TestExpiredSessionsLoseNoPackets is the same where packets must wait for the new session. One lane at the
// receiver shows the order in which the lanes of the sender let them go.
func TestExpiredSessionsLoseNoPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{Lanes: 4})
		b := lan.Host(t, 2, devicetest.Options{Depth: 4096})
		devicetest.Connect(a, b)
		var check flow.Checker
		b.Watch(func(_ int, e []byte) {
			if err := check.Take(e); err != nil {
				t.Error(err)
			}
		})
		var flows []*flow.Flow
		for i := range 4 {
			flows = append(flows, &flow.Flow{Ends: a.To(b, uint16(i), i%2 == 0), ID: uint32(i)})
		}
		want := uint64(0)
		for range 10 {
			for i := range 100 {
				f := flows[i%4]
				a.SendOn(i%4, f.Next(100))
				if i%10 == 0 {
					a.SendOn(i%4, f.Train(3, 700))
				}
			}
			want += 100 + 10*3
			a.Await("all has arrived", func() bool { return check.Total() == want || t.Failed() })
			time.Sleep(200 * time.Second)
		}
		wantNoDrops(t, a, b)
	})
}
