// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"maps"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// answering is a Spread with gather, whose peer is at them4.
type answering struct {
	*Spread
	t *testing.T
}

func newAnswering(t *testing.T) *answering {
	t.Helper()
	s := newSpread(t, SpreadOptions{L2: true})
	expect.NoError(t, s.SetGather(true))
	a := &answering{s, t}
	key, value := a.peer()
	value.Answers.Heard = 1 // before the machine started, once aged
	expect.NoError(t, a.maps.Peers.Put(&key, &value))
	a.age(time.Minute)
	return a
}

func (a *answering) peer() (key spreadPeerKey, value spreadPeer) {
	a.t.Helper()
	key = peerKey(51820, endpoint(them4))
	expect.NoError(a.t, a.maps.Peers.Lookup(&key, &value))
	return key, value
}

// age makes all that the programs have recorded older, also than the machine: their arithmetic wraps around.
func (a *answering) age(by time.Duration) {
	a.t.Helper()
	key, value := a.peer()
	ticks := uint64(by) >> tickShift
	for _, at := range []*uint64{&value.Answers.Heard, &value.Answers.Sent, &value.Answers.Unanswered, &value.Answers.Held} {
		if *at != 0 { // 0 is never
			*at -= ticks
		}
	}
	expect.NoError(a.t, a.maps.Peers.Put(&key, &value))
	source := sourceKey(51820, endpoint(them4).Addr())
	var noted spreadSource
	expect.NoError(a.t, a.maps.Sources.Lookup(&source, &noted))
	noted.Noted -= uint64(by / time.Millisecond) // at 1,000 jiffies per second at most
	expect.NoError(a.t, a.maps.Sources.Put(&source, &noted))
	a.forgetRecentSources()
}

// forgetRecentSources is the passing of a jiffy.
func (a *answering) forgetRecentSources() {
	a.t.Helper()
	var cpus []spreadCounters
	expect.NoError(a.t, a.maps.Counters.Lookup(uint32(0), &cpus))
	for i := range cpus {
		cpus[i].Recent, cpus[i].Local = spreadCounters{}.Recent, spreadCounters{}.Local
	}
	expect.NoError(a.t, a.maps.Counters.Put(uint32(0), cpus))
}

// send sends messages over a time, and returns the source port of the last one.
func (a *answering) send(over time.Duration) (port uint16) {
	a.t.Helper()
	const pause = 4 * time.Second
	for range over/pause + 1 {
		for range 4 {
			port, _ = sentFrom(a.t, a.Spread, data(us4, them4).bytes())
		}
		a.age(pause)
	}
	return port
}

// hear has gather see a message of the peer.
func (a *answering) hear(kind byte, size int) {
	a.t.Helper()
	runTC(a.t, a.Ingress(), data(from(them4, gathers), us4).with(func(d *datagram) { d.payload = message(kind, size) }).bytes(), skb{})
}

func (a *answering) want(what string, got, want uint16) {
	a.t.Helper()
	if got != want {
		_, value := a.peer()
		a.t.Fatalf("%s: got source port %d, want %d; %+v", what, got, want, value.Answers)
	}
}

// TestUnansweredMessagesKeepListenPort: a firewall passes handshakes and drops what comes from lane ports.
func TestUnansweredMessagesKeepListenPort(t *testing.T) {
	a := newAnswering(t)
	a.want("at first", a.send(20*time.Second), lane)
	a.hear(2, 92) // a handshake response
	a.want("with handshakes alone", a.send(12*time.Second), 51820)
	peers, err := a.Peers()
	expect.NoError(t, err)
	if held := peers[0].HeldFor; held < 8*time.Minute || held > 10*time.Minute || peers[1].HeldFor != 0 {
		t.Errorf("got %+v, want the first peer held for some 10 minutes", peers)
	}
	before := counters(t, a.Spread)
	sentFrom(t, a.Spread, data(us4, them4).bytes())
	if got := counted(t, a.Spread, before); !maps.Equal(got, once(EventUnanswered)) {
		t.Errorf("counted %v, want %v", got, once(EventUnanswered))
	}

	a.age(11 * time.Minute)
	a.want("when the hold is over", a.send(12*time.Second), lane)
	a.want("still unanswered", a.send(24*time.Second), 51820)
	a.age(11 * time.Minute)
	a.want("held for twice the time", a.send(0), 51820)

	expect.NoError(t, a.SetPeerPaused(51820, endpoint(them4), false))
	a.want("resumed", a.send(0), lane)
}

// TestKeepaliveBehindOtherMessageIsHeard: a probe of the peer's spread program leaves just ahead of the keepalive.
func TestKeepaliveBehindOtherMessageIsHeard(t *testing.T) {
	for name, ahead := range map[string]int{"a handshake response": 92, "a probe that is not for this host": 40} {
		a := newAnswering(t)
		for range 10 {
			a.want("keepalives behind "+name, a.send(8*time.Second), lane)
			a.hear(2, ahead)
			a.hear(4, 32)
		}
	}
}

// TestAnswersKeepPeerSpread has answers of all kinds of peers, for an hour each.
func TestAnswersKeepPeerSpread(t *testing.T) {
	for name, c := range map[string]struct {
		every time.Duration
		size  int
	}{"data in turn": {4 * time.Second, 96}, "keepalives": {12 * time.Second, 32}, "a lost keepalive each time": {20 * time.Second, 32}} {
		t.Run(name, func(t *testing.T) {
			a := newAnswering(t)
			for range time.Hour / c.every {
				a.want(name, a.send(c.every-4*time.Second), lane)
				a.hear(4, c.size)
			}
		})
	}
}

func TestPeersThatCannotBeHeardStaySpread(t *testing.T) {
	for name, change := range map[string]func(a *answering) error{
		"without gather": func(a *answering) error { return a.SetGather(false) },
		"without lane ports of its own": func(a *answering) error {
			return a.SetPeer(Peer{Tunnel: 51820, Endpoint: endpoint(them4), Lanes: []uint16{lane}, Gather: spread.Ports{}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAnswering(t)
			expect.NoError(t, change(a))
			for range 40 {
				port, _ := sentFrom(t, a.Spread, data(us4, them4).bytes())
				a.want(name, port, lane)
				key, value := a.peer()
				value.Answers.Unanswered -= min(value.Answers.Unanswered, 1<<20)
				expect.NoError(t, a.maps.Peers.Put(&key, &value))
			}
		})
	}
}

// TestPauseOfSenderIsNotUnanswered sends bursts, and the answers to the last one of each are lost.
func TestPauseOfSenderIsNotUnanswered(t *testing.T) {
	a := newAnswering(t)
	for range 100 {
		a.want("a burst", a.send(4*time.Second), lane)
		a.age(time.Minute)
	}
}
