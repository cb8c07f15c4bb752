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
	w.flow(0, 20, 100)
	w.flow(0, 20, 1000).copies = 10
	w.run(2 * time.Minute)
	w.trains = false
	w.until(30*time.Second, w.TrainsLost)
}

// TestShortOutagesLoseNoTrains has a path fail when a test begins, or during it: the routes have changed.
func TestShortOutagesLoseNoTrains(t *testing.T) {
	for begin := time.Duration(0); begin < 3*time.Second; begin += 500 * time.Millisecond {
		for outage := 500 * time.Millisecond; outage < 9*time.Second; outage += 500 * time.Millisecond {
			w := trainWorld(t, 1)
			w.until(time.Minute, func() bool { return w.ended == 1 })
			w.flow(0, 100, 1000)
			w.run(2 * time.Minute)
			w.outage = begin == 0
			w.RetestTrains()
			w.run(begin)
			w.outage = true
			for end := w.now + int64(outage); w.now < end; w.run(100 * time.Millisecond) {
				w.RetestTrains()
			}
			w.outage = false
			for range 200 {
				if w.run(100 * time.Millisecond); w.TrainsLost() {
					t.Fatalf("trains count as lost after an outage of %v, %v after the test began", outage, begin)
				}
			}
		}
	}
}

// TestRepeatedOutagesLoseNoTrains has a path fail again and again.
func TestRepeatedOutagesLoseNoTrains(t *testing.T) {
	for seed := range seeds(100) {
		w := trainWorld(t, seed)
		w.flow(0, 100, 1000)
		for range 200 {
			w.outage = !w.outage
			w.RetestTrains()
			w.run(time.Duration(1+w.r.IntN(20)) * time.Second)
			if w.TrainsLost() {
				t.Fatalf("seed %d: trains count as lost after %v", seed, time.Duration(w.now-w.began))
			}
		}
	}
}

func TestLossLosesNoTrains(t *testing.T) {
	for seed := range seeds(100) {
		w := trainWorld(t, seed)
		w.paths[0].loss = 0.02
		w.flow(0, 100, 1000)
		for range 3600 {
			if w.run(time.Second); w.TrainsLost() {
				t.Fatalf("seed %d: trains count as lost after %d tests", seed, w.ended)
			}
		}
	}
}

// TestLateAnswersToTrainsCount has answers return only when single messages are being sent.
func TestLateAnswersToTrainsCount(t *testing.T) {
	w := trainWorld(t, 1)
	w.back = int64(2500 * time.Millisecond)
	w.flow(0, 100, 1000)
	w.run(time.Minute)
	if w.TrainsLost() || w.ended == 0 {
		t.Errorf("got trains lost %v after %d tests", w.TrainsLost(), w.ended)
	}
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
