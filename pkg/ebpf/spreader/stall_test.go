// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"maps"
	"slices"
	"testing"
	"time"
)

// stallSample is a sample of one peer. A handshake of -1: never.
type stallSample struct {
	at, handshake  int // seconds
	sent, received uint64
	stalled        bool
}

// early returns samples of a peer with a completed handshake every gap seconds, each of which has received so many bytes more.
func early(n, gap int, each uint64) (all []stallSample) {
	for i := range n {
		all = append(all, stallSample{at: 5 + gap*i, handshake: gap * i, sent: uint64(5000 * i), received: each * uint64(i)})
	}
	return all
}

func stalledFrom(n int, all []stallSample) []stallSample {
	for i := n; i < len(all); i++ {
		all[i].stalled = true
	}
	return all
}

// handshakes returns samples for 20 minutes, 5 s apart, of a peer that sends no data. This side begins a handshake every own seconds, and the
// peer every other seconds; 0: never.
func handshakes(own, other int) (all []stallSample) {
	s := stallSample{}
	for s.at = 5; s.at <= 1200; s.at += 5 {
		s.sent += 1000
		if own > 0 && s.at%own == 0 {
			s.received, s.handshake = s.received+responseBytes, s.at
		}
		if other > 0 && (s.at+own/2)%other == 0 {
			s.received += initiationBytes
		}
		all = append(all, s)
	}
	return all
}

var stallCases = map[string][]stallSample{
	"receives":                          {{5, 0, 100, 100, false}, {300, 280, 900, 9000, false}, {600, 590, 1900, 19000, false}},
	"idle":                              {{5, 0, 100, 0, false}, {300, 0, 100, 0, false}, {600, 0, 100, 0, false}, {900, 0, 100, 0, false}},
	"never sent to":                     {{5, -1, 0, 0, false}, {300, -1, 0, 0, false}, {600, -1, 0, 0, false}},
	"handshakes every 15 s":             stalledFrom(3, early(6, 15, 92)),
	"seen every minute":                 stalledFrom(3, early(6, 60, 4*92)),
	"two handshakes between samples":    {{5, 0, 0, 0, false}, {25, 17, 9, 184, false}, {45, 33, 19, 276, false}, {85, 81, 29, 552, true}},
	"handshakes every 2 minutes":        early(6, 120, 92),
	"the peer sends a keepalive each":   early(6, 15, 148+32),
	"data with each handshake":          early(6, 15, 92+4000),
	"one answer between":                {{5, 0, 0, 0, false}, {20, 15, 9, 92, false}, {35, 30, 19, 184, false}, {40, 30, 29, 984, false}, {50, 45, 30, 1076, false}},
	"keepalives only":                   {{5, 0, 0, 0, false}, {65, 0, 64, 0, false}, {125, 120, 300, 92, false}, {185, 120, 364, 92, false}, {245, 240, 600, 184, false}},
	"the peer went down":                {{5, 0, 100, 0, false}, {300, 0, 248, 0, false}, {389, 0, 5000, 0, false}, {390, 0, 6000, 0, false}, {2000, 0, 6000, 0, false}},
	"one packet while it was down":      {{5, 0, 100, 0, false}, {200, 0, 248, 0, false}, {290, 0, 2912, 0, false}, {2000, 0, 2912, 0, false}},
	"never answered":                    {{5, -1, 148, 0, false}, {10, -1, 296, 0, false}, {99, -1, 444, 0, false}, {1000, -1, 888, 0, false}},
	"this side begins handshakes":       stalledFrom(8, handshakes(15, 0)),
	"the peer begins handshakes":        stalledFrom(11, handshakes(0, 15)),
	"both begin handshakes in turn":     stalledFrom(11, handshakes(30, 30)),
	"both begin handshakes often":       stalledFrom(7, handshakes(20, 20)),
	"the peer gets no responses":        handshakes(0, 5),
	"the peer begins, every 2 minutes":  handshakes(0, 120),
	"recovers from early handshakes":    append(stalledFrom(3, early(4, 15, 92)), stallSample{at: 60, handshake: 45, sent: 90000, received: 9000}),
	"the counters began anew":           append(stalledFrom(3, early(4, 15, 92)), stallSample{at: 60, handshake: 59, sent: 148, received: 92}),
	"the clock was set back, and later": {{5, 1000, 0, 0, false}, {20, 15, 9, 92, false}, {35, 1030, 19, 184, false}, {50, 1045, 29, 276, false}},
}

func TestStallWatchFindsStalledPeers(t *testing.T) {
	begin := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	for name, samples := range stallCases {
		w, was := stallWatch{}, false
		for _, s := range samples {
			p := TunnelPeer{Key: "a", SentBytes: s.sent, ReceivedBytes: s.received}
			if s.handshake >= 0 {
				p.LastHandshake = at(s.handshake)
			}
			stalled, recovered := w.update(at(s.at), []TunnelPeer{p})
			if w["a"].stalled != s.stalled || len(stalled) == 1 != (s.stalled && !was) || len(recovered) == 1 != (!s.stalled && was) {
				t.Errorf("%s, at %d s: stalled is %v, reported %v and %v, want %v", name, s.at, w["a"].stalled, stalled, recovered, s.stalled)
			}
			was = s.stalled
		}
		if w.update(at(5000), nil); len(w) > 0 {
			t.Errorf("%s: a peer that is gone is still known", name)
		}
	}
}

func TestStalledPeerIsRestartedOncePerInterval(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	w := stallWatch{"a": {stalled: true}, "b": {stalled: true, restarted: now.Add(-restartInterval)}, "c": {stalled: true, restarted: now.Add(-time.Minute)}, "d": {}}
	if keys := w.takeRestarts(now); !slices.Equal(keys, []string{"a", "b"}) {
		t.Errorf("got %q, want a and b", keys)
	}
	w.update(now.Add(time.Second), nil)
	if len(w) != 3 || w["a"].restarted != now {
		t.Errorf("got %v while the peers are gone, want the times of three restarts", w)
	}
	w["d"] = peerRecord{}
	stall := func(at time.Time) {
		for _, key := range slices.Collect(maps.Keys(w)) {
			r := w[key].next(at, &TunnelPeer{Key: key})
			r.stalled = true
			w[key] = r
		}
	}
	stall(now.Add(time.Second))
	if keys := w.takeRestarts(now.Add(restartInterval - time.Second)); !slices.Equal(keys, []string{"c", "d"}) {
		t.Errorf("got %q a second before the interval's end, want c and d", keys)
	}
	stall(now.Add(restartInterval - time.Second))
	if keys := w.takeRestarts(now.Add(restartInterval)); !slices.Equal(keys, []string{"a", "b"}) {
		t.Errorf("got %q after the interval, want a and b", keys)
	}
}
