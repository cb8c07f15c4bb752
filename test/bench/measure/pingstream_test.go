// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestOutageLastsBetweenAnsweredPings: one sent each 10 ms.
func TestOutageLastsBetweenAnsweredPings(t *testing.T) {
	for _, c := range []struct {
		answered string // one letter each ping: y or n
		lost     int
		hole     time.Duration
	}{
		{"", 0, 0},
		{"y", 0, 0},
		{"yyyy", 0, 0},
		{"ynyy", 1, 20 * time.Millisecond},
		{"yynnnyynny", 5, 40 * time.Millisecond},
		{"ynnyynnnnyy", 6, 50 * time.Millisecond},
		{"nnyy", 2, 20 * time.Millisecond},
		{"yynn", 2, 20 * time.Millisecond},
		{"nnn", 3, 20 * time.Millisecond},
	} {
		var sent, back []time.Duration
		for i, a := range c.answered {
			sent = append(sent, time.Duration(i)*10*time.Millisecond)
			back = append(back, 0)
			if a == 'y' {
				back[i] = sent[i] + time.Millisecond
			}
		}
		got := findOutage(sent, back)
		if got.sent != len(c.answered) || got.lost != c.lost || got.hole != c.hole {
			t.Errorf("%q: %+v, want %d lost, a hole of %s", c.answered, got, c.lost, c.hole)
		}
	}
}

// TestSenderPauseIsNotAnOutage: nothing was lost, however long none was sent.
func TestSenderPauseIsNotAnOutage(t *testing.T) {
	at := func(ms ...int) (list []time.Duration) {
		for _, m := range ms {
			list = append(list, time.Duration(m)*time.Millisecond)
		}
		return list
	}
	got := findOutage(at(0, 1, 500, 501), at(2, 3, 530, 531))
	if got.lost != 0 || got.hole != 0 || got.late != 30*time.Millisecond {
		t.Errorf("%+v", got)
	}
}

// TestOutageMatchesReferenceImplementation: its slow twin looks at every pair of pings.
func TestOutageMatchesReferenceImplementation(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		var sent, back []time.Duration
		now := time.Duration(0)
		for range rng.IntN(30) {
			sent, back = append(sent, now), append(back, 0)
			if rng.IntN(3) > 0 {
				back[len(back)-1] = now + time.Duration(1+rng.IntN(50))
			}
			now += time.Duration(1 + rng.IntN(9))
		}
		if got, want := findOutage(sent, back), slowFindOutage(sent, back); got != want {
			t.Fatalf("sent %v, back %v: %+v, want %+v", sent, back, got, want)
		}
	}
}

func slowFindOutage(sent, back []time.Duration) (o outage) {
	o.sent = len(sent)
	edge := func(i int) bool { return back[i] != 0 || i == 0 || i == len(sent)-1 }
	for i := range sent {
		if back[i] == 0 {
			o.lost++
		} else {
			o.late = max(o.late, back[i]-sent[i])
		}
		for j := i + 1; j < len(sent); j++ {
			lost, answered := back[i] == 0 || back[j] == 0, false
			for k := i + 1; k < j; k++ {
				lost, answered = lost || back[k] == 0, answered || back[k] != 0
			}
			if edge(i) && edge(j) && lost && !answered {
				o.hole = max(o.hole, sent[j]-sent[i])
			}
		}
	}
	return o
}
