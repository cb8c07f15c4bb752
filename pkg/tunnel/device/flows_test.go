// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestFlowReportHasPeersAndPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		f := flow.Flow{Ends: a.To(b, 1000, false)}
		a.Send(f.Next(100)) // waits for the handshake, and is not counted
		b.Next()
		synctest.Wait() // until then the slow lane sends
		a.Flows()
		b.Flows()
		a.Send(f.Train(4, 500))
		b.Next()
		synctest.Wait()
		want := device.Flow{
			FlowID:    device.FlowID{Direction: "tx", Peer: b.Public().Base64(), Protocol: "tcp", Source: f.Src.String(), Destination: f.Dst.String()},
			OuterPort: a.Status().ListenPort, Packets: 4,
		}
		checkFlow(t, a.Flows(), want)
		want.Direction, want.Peer = "rx", a.Public().Base64()
		checkFlow(t, b.Flows(), want)
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Remove: true}}})
		if got := a.Flows().Flows; len(got) != 0 {
			t.Errorf("flows of a removed peer: got %+v, want none", got)
		}
	})
}

// checkFlow fails unless a report has that flow only.
func checkFlow(t *testing.T, r device.FlowReport, want device.Flow) {
	t.Helper()
	if len(r.Flows) != 1 || r.Since == 0 || r.Now < r.Since {
		t.Fatalf("got %+v, want 1 flow", r)
	}
	got := r.Flows[0]
	if got.First < r.Since || got.Last < got.First || got.Bytes < 2000 {
		t.Errorf("got %+v, want times after %d and at least 2000 bytes", got, r.Since)
	}
	got.First, got.Last, got.Bytes = 0, 0, 0
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestFlowsAreReadWhileLanesCarryTraffic has two readers of the flows of four lanes. Nothing is lost or reordered, and no counter is too
// high. It does without spreading, as TestSessionChangesNeitherLoseNorReorder.
func TestFlowsAreReadWhileLanesCarryTraffic(t *testing.T) {
	a, b := devicetest.Pair(t, devicetest.Options{Lanes: 4, Depth: 4096})
	off := config.SpreadOff
	a.Apply(config.Device{Settings: config.Settings{Spread: &off}})
	b.Apply(config.Device{Settings: config.Settings{Spread: &off}})
	talkOnAnyLane(t, a, b)
	load := devicetest.NewLoad(t, a, b, 8)
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					a.Flows()
				}
			}
		})
	}
	load.Run(200)
	close(done)
	readers.Wait()
	sums := map[string]uint64{}
	for _, f := range a.Flows().Flows {
		sums[f.Direction] += f.Packets
	}
	if n := load.Packets(); len(sums) != 2 || sums["tx"]+sums["rx"] > n {
		t.Errorf("of %d packets, %d were counted as sent and %d as received", n, sums["tx"], sums["rx"])
	}
}
