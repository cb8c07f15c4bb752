// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// maxBytesPerPeer is the limit of heap bytes for a peer without a session: a seventh above the measured value (docs/dev/idle.md).
func maxBytesPerPeer(lanes int) int { return 2560 + 10*lanes }

// maxBytesPerSession is the limit of heap bytes that a session adds: twice the measured value.
const maxBytesPerSession = 2200

// burstBuffers is the number of bytes that a lane allocates when the first burst of single packets waits, which depends on the scheduler.
const burstBuffers = 48 << 16

func TestMemoryPerPeerIsBounded(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory counts too")
	}
	t.Logf("%6s %6s %12s %12s %10s", "lanes", "peers", "B per peer", "+ session", "goroutines")
	for _, c := range []struct{ lanes, peers int }{{1, 1000}, {2, 1000}, {2, 10000}, {32, 1000}} {
		h := devicetest.NewUDP(t, 1, devicetest.Options{Lanes: c.lanes})
		clients := newPeerSet(t, c.peers, h.Public(), func() (*net.UDPConn, error) {
			return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(h.Outside(false)))
		})
		peers := clients.config()
		before, goroutines := heap(), runtime.NumGoroutine()
		h.Apply(peers)
		idle := heapGrowth(before, c.peers*maxBytesPerPeer(c.lanes))
		clients.connect(t)
		expect.Eventually(t, "all peers have a session", func() bool { return connected(h.Status(), c.peers) })
		limit := c.peers*maxBytesPerSession + c.lanes*burstBuffers
		live := heapGrowth(before+idle, limit)
		more := runtime.NumGoroutine() - goroutines
		t.Logf("%6d %6d %12d %12d %10d", c.lanes, c.peers, idle/c.peers, live/c.peers, more)
		if idle/c.peers > maxBytesPerPeer(c.lanes) || live > limit || more > c.peers/10 {
			t.Errorf("want at most %d bytes per peer, %d more per session, and no goroutine per peer", maxBytesPerPeer(c.lanes), maxBytesPerSession)
		}
		runtime.KeepAlive(peers)
		h.Close()
	}
}

// maxUnanswered is the resident memory in KiB of a daemon with 5,000 peers none of which answers: an engine of a cluster has 48 MiB for them.
const maxUnanswered = 48 << 10

// TestUnansweredPeersLeaveLittleMemory starts a handshake with each peer of a daemon. Their attempts go on for 90 s.
func TestUnansweredPeersLeaveLittleMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's own memory counts too")
	}
	lab, _ := netlabtest.Hosts(t, "unanswered")
	d := startDaemon(t, lab, 2)
	clients := d.manyPeers(5000)
	peers := clients.config()
	d.apply(peers)
	for batch := range slices.Chunk(peers.Peers, window) {
		var keys []noise.PublicKey
		for i := range batch {
			keys = append(keys, batch[i].PublicKey)
		}
		expect.NoError(t, d.ask(func(c *uapi.Client) error {
			_, err := c.ProbePeers(keys...)
			return err
		}))
	}
	t.Logf("%d KiB resident after the first initiations", d.usage().rss)
	expect.EventuallyNoError(t, "the daemon to give memory back", func() error {
		if u := d.usage(); u.rss > maxUnanswered {
			return fmt.Errorf("%d KiB resident, %d of them not of files", u.rss, u.anon)
		}
		return nil
	})
	t.Logf("%d KiB then", d.usage().rss)
}

// heapGrowth returns the number of heap bytes allocated since before. Temporary objects may be alive during a collection, so it
// measures up to ten times while the result exceeds limit.
func heapGrowth(before, limit int) int {
	n := heap() - before
	for tries := 1; n > limit && tries < 10; tries++ {
		n = min(n, heap()-before)
	}
	return n
}

// heap returns the number of bytes of live objects.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the second collection empties sync.Pool
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
