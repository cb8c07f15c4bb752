// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"testing"
	"time"
)

// trainWorld is a world whose underlay sends trains.
func trainWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := newWorld(t, 0, seed)
	w.EnableTrains(true)
	w.arm()
	return w
}

func TestArrivingTrainsAreTestedOnce(t *testing.T) {
	w := trainWorld(t, 1)
	w.flow(0, 100, 1000)
	w.run(time.Hour)
	if w.TrainsLost() || w.ended != 1 {
		t.Errorf("got trains lost %v after %d tests, want them to arrive after one", w.TrainsLost(), w.ended)
	}
}

func TestTrainTestsAreOffByDefault(t *testing.T) {
	w := newWorld(t, 0, 1)
	w.run(time.Minute)
	if w.ended != 0 || w.probes != 1 {
		t.Errorf("got %d tests of trains and %d probes, want the probe of the path MTU alone", w.ended, w.probes)
	}
}

func TestLostTrainsAreNoticedWithinFiveSeconds(t *testing.T) {
	for seed := range seeds(20) {
		w := trainWorld(t, seed)
		w.trains = false
		w.until(5*time.Second, w.TrainsLost)
		if limit, proven := w.Limit(); limit != 1480 || !proven {
			t.Errorf("got path MTU %d, proven %v, want 1480 proven", limit, proven)
		}
	}
}

func TestTrainsAreTriedAgain(t *testing.T) {
	w := trainWorld(t, 1)
	w.trains = false
	w.flow(0, 100, 1000)
	w.until(5*time.Second, w.TrainsLost)
	w.run(30 * time.Minute)
	if !w.TrainsLost() || w.ended < 3 || w.ended > 4 {
		t.Errorf("got trains lost %v, %d tests in half an hour, want one in ten minutes", w.TrainsLost(), w.ended)
	}
	w.trains = true
	w.until(11*time.Minute, func() bool { return !w.TrainsLost() })
}

func TestOutageLosesNoTrains(t *testing.T) {
	w := trainWorld(t, 1)
	w.until(time.Second, func() bool { return w.State() == Complete })
	w.outage = true
	w.flow(0, 100, 1000)
	w.run(time.Minute)
	if w.TrainsLost() {
		t.Error("trains count as lost while nothing arrived")
	}
	w.outage = false
	w.until(2*time.Minute, func() bool { return w.ended > 0 })
	if w.TrainsLost() {
		t.Error("trains count as lost after the outage")
	}
}

func TestTrainsLostLaterAreNoticedByLoss(t *testing.T) {
	w := trainWorld(t, 1)
	w.until(time.Minute, func() bool { return w.ended == 1 })
	w.flow(0, 100, 1000)
	w.run(2 * time.Minute)
	w.trains = false
	w.RetestTrains() // the routes have changed
	w.until(10*time.Second, w.TrainsLost)
}

func TestIdlePeerGetsNoTrains(t *testing.T) {
	w := trainWorld(t, 1)
	w.trains = false
	w.until(5*time.Second, w.TrainsLost)
	before := w.probes
	w.RetestTrains()
	w.run(time.Hour)
	if w.probes != before {
		t.Errorf("got %d probes without data, want none", w.probes-before)
	}
}
