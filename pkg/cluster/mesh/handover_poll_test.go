// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// changing returns the peers of a node that changes its key to the given one.
func changing(node string, next byte) []Peer {
	return []Peer{{Node: node, Key: noise.PublicKey{1}}, {Node: node, Key: noise.PublicKey{next}, Replaces: noise.PublicKey{1}}}
}

func TestHandoverPollSlowsDownAndStops(t *testing.T) {
	h := HandoverPoll{Propagation: 10 * time.Second}
	began := time.Unix(1000, 0)
	for _, c := range []struct {
		after time.Duration
		peers []Peer
		want  time.Duration
	}{
		{0, []Peer{{Node: "n", Key: noise.PublicKey{1}}}, 0},
		{0, changing("n", 2), fastInterval},
		{29 * time.Second, changing("n", 2), fastInterval},
		{31 * time.Second, changing("n", 2), slowInterval},
		{32 * time.Second, append(changing("n", 2), changing("o", 4)...), fastInterval},
		{14 * time.Minute, changing("n", 2), slowInterval},
		{15 * time.Minute, changing("n", 2), 0},
		{24 * time.Hour, changing("n", 2), 0},
		{24*time.Hour + time.Second, changing("n", 3), fastInterval},
	} {
		if got := h.Interval(began.Add(c.after), c.peers); got != c.want {
			t.Errorf("after %s: every %s, want %s", c.after, got, c.want)
		}
	}
}

func TestRepeatedNextKeysDoNotKeepFastPolling(t *testing.T) {
	h := HandoverPoll{Propagation: 10 * time.Second}
	began, often := time.Unix(1000, 0), 0
	const hour = 3600
	for second := range hour {
		peers := changing("n", byte(2+second%200))
		if second%3 == 0 {
			peers = peers[:1] // at times there is no next key
		}
		if h.Interval(began.Add(time.Duration(second)*time.Second), peers) == fastInterval {
			often++
		}
	}
	if most := 5 * 30; often > most {
		t.Errorf("fast polling in %d seconds of an hour", often)
	}
}

func TestSecondKeyChangeIsPolledFastAgain(t *testing.T) {
	h := HandoverPoll{Propagation: 10 * time.Second}
	began := time.Unix(1000, 0)
	h.Interval(began, changing("n", 2))
	h.Interval(began.Add(20*time.Second), []Peer{{Node: "n", Key: noise.PublicKey{2}}})
	second := []Peer{{Node: "n", Key: noise.PublicKey{2}}, {Node: "n", Key: noise.PublicKey{3}, Replaces: noise.PublicKey{2}}}
	if got := h.Interval(began.Add(time.Minute), second); got != fastInterval {
		t.Errorf("got interval %s, want %s", got, fastInterval)
	}
}

func TestHandoverPollForgetsRemovedNodes(t *testing.T) {
	var h HandoverPoll
	now := time.Unix(1000, 0)
	h.Interval(now, changing("gone", 2))
	h.Interval(now.Add(pollTimeout), nil)
	if len(h.changes) != 0 {
		t.Error(h.changes)
	}
}
