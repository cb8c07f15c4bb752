// SPDX-License-Identifier: Apache-2.0

package fqcodel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// oracleParams are parameters with the mean service time of a packet.
var oracleParams = []struct {
	Params
	service time.Duration
}{
	{Params{5 * time.Millisecond, 100 * time.Millisecond, 1500}, time.Millisecond},
	{Params{5 * time.Millisecond, 100 * time.Millisecond, 0}, 300 * time.Microsecond},
	{Params{time.Millisecond, 20 * time.Millisecond, 9000}, 200 * time.Microsecond},
	{Params{50 * time.Microsecond, time.Millisecond, 1500}, 40 * time.Microsecond},
	{Params{20 * time.Millisecond, 50 * time.Millisecond, 1500}, 7 * time.Millisecond},
}

// drive calls arrive and leave at random times for the given number of steps. The load changes, so that queues grow and drain.
func drive(rnd *rand.Rand, steps int, service time.Duration, arrive func(now int64), leave func(now int64)) {
	loads := []float64{0.1, 0.3, 0.8, 0.97, 1.02, 1.1, 1.3, 2}
	now, until, load := int64(1), int64(0), 0.0
	wait := func(mean float64) int64 { return int64(rnd.ExpFloat64() * mean) }
	nextArrival, nextDeparture := now, now
	for range steps {
		if now >= until {
			until = now + wait(float64(service)*1000)
			load = loads[rnd.IntN(len(loads))]
		}
		if nextArrival <= nextDeparture {
			now = nextArrival
			arrive(now)
			nextArrival += wait(float64(service) / load)
		} else {
			now = nextDeparture
			leave(now)
			nextDeparture += wait(float64(service))
		}
	}
}

// matchReference compares a Queue with a reference that dequeues by the given function. The Queue signals by a mark where mark
// returns true, otherwise by a drop.
func matchReference(t *testing.T, mark func(id int) bool, dequeue func(r *reference, now int64) int) {
	for i, tt := range oracleParams {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(8289, uint64(i)))
			ref := &reference{Params: tt.Params}
			var signals []int
			q := New(Config[packet]{
				Params: tt.Params, Flows: 1, Quantum: 1514, Elements: 1 << 18, Bytes: 1 << 30,
				Signal: func(p *packet) bool {
					signals = append(signals, p.id)
					return !mark(p.id)
				},
			})
			id, delivered := 0, 0
			arrive := func(now int64) {
				p := packet{id, 64 + rnd.IntN(1437), now}
				id++
				ref.push(p)
				q.Push(0, p, p.bytes, now)
			}
			leave := func(now int64) {
				p, _, ok := q.Pop(now)
				if !ok {
					p.id = -1
				} else {
					delivered++
				}
				if want := dequeue(ref, now); p.id != want {
					t.Fatalf("at %v: delivered %d, reference %d", time.Duration(now), p.id, want)
				}
				if len(signals) != len(ref.signals) {
					t.Fatalf("at %v: %d signals, reference %d", time.Duration(now), len(signals), len(ref.signals))
				}
			}
			drive(rnd, 200_000, tt.service, arrive, leave)
			if !slices.Equal(signals, ref.signals) {
				t.Error("signalled packets differ from the reference")
			}
			drops := len(signals) > 0 && delivered < id-q.Len()
			if delivered < 10_000 || len(signals) < 200 || drops && ref.bursts == 0 || ref.resumed == 0 {
				t.Errorf("steps do not reach all cases: %d delivered, %d signals, %d bursts, %d resumed",
					delivered, len(signals), ref.bursts, ref.resumed)
			}
		})
	}
}

func TestDropsEqualRFC8289(t *testing.T) {
	matchReference(t, func(int) bool { return false }, (*reference).dequeueRFC)
}

func TestMarksEqualLinux(t *testing.T) {
	for name, mark := range map[string]func(int) bool{
		"all packets ECN-capable":  func(int) bool { return true },
		"some packets ECN-capable": func(id int) bool { return id*0x9e3779b1>>7&3 == 0 },
		"no packet ECN-capable":    func(int) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			matchReference(t, mark, func(r *reference, now int64) int { return r.dequeueLinux(now, mark) })
		})
	}
}
