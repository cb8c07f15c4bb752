// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// rulebook checks a conversation by the deadlines of the WireGuard paper (§6.5), which are later by no more than peers'
// timers are coalesced, the jitter of handshakes and the resolution of peer.Activity.
type rulebook struct {
	timeline
	cut   atomic.Bool // the network loses everything
	whole []bool      // of each message seen: it was delivered
}

const (
	ruleSlack    = (269 + 334 + 100) * time.Millisecond
	rulePayload  = 500
	ruleInterval = 25
)

func (b *rulebook) filter(from, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
	b.mu.Lock()
	whole := !b.cut.Load()
	b.note(from, datagram)
	b.whole = append(b.whole, whole)
	b.mu.Unlock()
	if whole {
		return underlaytest.Deliver
	}
	return underlaytest.Drop
}

// follows reports whether a matching message follows message i within d. Events at the same instant have no order, for
// timers either.
func (b *rulebook) follows(i int, d time.Duration, match func(j int) bool) bool {
	first := i
	for first > 0 && b.seen[first-1].at.Equal(b.seen[i].at) {
		first--
	}
	for j := first; j < len(b.seen) && b.seen[j].at.Sub(b.seen[i].at) <= d+ruleSlack; j++ {
		if j != i && match(j) {
			return true
		}
	}
	return false
}

// check reports the violations by all messages that are old enough at the end. The host persistent, if any, has a persistent keepalive.
func (b *rulebook) check(t *testing.T, persistent netip.Addr, end time.Time) {
	t.Helper()
	for i, p := range b.seen {
		if end.Sub(p.at) < 30*time.Second {
			return
		}
		mine := func(j int) bool { return b.seen[j].from == p.from }
		theirs := func(j int) bool { return !mine(j) && b.whole[j] }
		data := p.size > rulePayload
		if data && b.whole[i] && !b.follows(i, 10*time.Second, func(j int) bool { return !mine(j) }) {
			t.Fatalf("at %v, %v sent data, and no keepalive came", p.at, p.from)
		}
		asked := func(j int) bool { return theirs(j) || mine(j) && initiations(b.seen[j]) }
		if data && !b.follows(i, 15*time.Second, asked) {
			t.Fatalf("at %v, %v sent data without an answer, and started no new handshake", p.at, p.from)
		}
		stays := func(j int) bool { return b.seen[j].from == persistent || b.whole[j] }
		if p.from == persistent && !b.follows(i, ruleInterval*time.Second, stays) {
			t.Fatalf("after %v, %v sent no persistent keepalive", p.at, p.from)
		}
	}
}

// converse sends in one direction or both, after pauses of all lengths, and sometimes through a network that
// loses everything.
func (b *rulebook) converse(r *rand.Rand, hosts [2]*devicetest.Host) {
	pauses := []time.Duration{time.Millisecond, 50 * time.Millisecond, time.Second, 9 * time.Second, 12 * time.Second, 40 * time.Second}
	for range 150 {
		switch r.IntN(12) {
		case 0:
			b.cut.Store(true)
		case 1, 2, 3:
			b.cut.Store(false)
		}
		n := r.IntN(2)
		for range 1 + r.IntN(3) {
			hosts[n].Send(flow.WithVnetHeader(hosts[n].To(hosts[1-n], 1, false).UDP(make([]byte, rulePayload))))
		}
		time.Sleep(time.Duration(r.Int64N(int64(2 * pauses[r.IntN(len(pauses))]))))
	}
	b.cut.Store(false)
}

// TestTimersMeetDeadlinesUnderAnyTraffic checks that no timer is lost between lanes, which record activity, and workers, which set timers.
func TestTimersMeetDeadlinesUnderAnyTraffic(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &rulebook{}
				lan := devicetest.NewLAN(b.filter)
				hosts := [2]*devicetest.Host{lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})}
				devicetest.Connect(hosts[0], hosts[1])
				off, every := config.SpreadOff, uint16(ruleInterval)
				for _, h := range hosts {
					h.Apply(config.Device{Settings: config.Settings{Spread: &off}})
					drain(t, h)
				}
				persistent := netip.Addr{}
				if seed%2 == 0 {
					persistent, _ = devicetest.Addresses(1)
					hosts[0].Apply(config.Device{Peers: []config.Peer{{PublicKey: hosts[1].Public(), Keepalive: &every}}})
				}
				b.converse(rand.New(rand.NewPCG(seed, 8)), hosts)
				synctest.Wait()
				b.mu.Lock()
				b.check(t, persistent, time.Now())
				n := len(b.seen)
				b.mu.Unlock()
				if n < 200 {
					t.Errorf("only %d messages: the test proves little", n)
				}
				if persistent.IsValid() {
					return
				}
				time.Sleep(20*time.Minute + ruleSlack) // a last handshake may be answered late, and tried for 90 s
				if n := hosts[0].Indices() + hosts[1].Indices() + hosts[0].Timers() + hosts[1].Timers(); n != 0 {
					t.Errorf("%d receiver indices and timers are left", n)
				}
			})
		})
	}
}
