// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"net"
	"runtime"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/device/devicetest"
)

// maxBytesPerPeer is what a peer without a session may take of the heap, a quarter more than it does (docs/idle.md), and
// maxBytesPerSession what a session may add, twice what it does.
func maxBytesPerPeer(lanes int) int { return 2000 + 20*lanes }

const maxBytesPerSession = 2200

func TestBytesPerPeer(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory counts too")
	}
	t.Logf("%6s %6s %12s %12s %10s", "lanes", "peers", "B per peer", "+ session", "goroutines")
	for _, c := range []struct{ lanes, peers int }{{1, 1000}, {2, 1000}, {2, 10000}, {32, 1000}} {
		h := devicetest.NewUDP(t, 1, devicetest.Options{Lanes: c.lanes})
		crowd := newCrowd(t, c.peers, h.Public(), func() (*net.UDPConn, error) {
			return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(h.Outside(false)))
		})
		peers := crowd.config()
		before, goroutines := heap(), runtime.NumGoroutine()
		h.Apply(peers)
		idle := taken(before, c.peers*maxBytesPerPeer(c.lanes))
		crowd.connect(t)
		eventually(t, "all have a session", func() bool { return connected(h.Status(), c.peers) })
		live := taken(before+idle, c.peers*maxBytesPerSession)
		more := runtime.NumGoroutine() - goroutines
		t.Logf("%6d %6d %12d %12d %10d", c.lanes, c.peers, idle/c.peers, live/c.peers, more)
		if idle/c.peers > maxBytesPerPeer(c.lanes) || live/c.peers > maxBytesPerSession || more > c.peers/10 {
			t.Errorf("want at most %d bytes per peer, %d more per session, and no goroutine", maxBytesPerPeer(c.lanes), maxBytesPerSession)
		}
		runtime.KeepAlive(peers)
		h.Close()
	}
}

// taken is how many bytes live objects take more than before. What happens to be alive during a collection counts too:
// so there are some tries where it is more than most.
func taken(before, most int) int {
	n := heap() - before
	for tries := 1; n > most && tries < 10; tries++ {
		n = min(n, heap()-before)
	}
	return n
}

// heap returns the bytes that live objects take.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
