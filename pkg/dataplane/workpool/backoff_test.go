// SPDX-License-Identifier: Apache-2.0

package workpool

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// collectJobs collects evaluationJobs jobs: byWorkers by workers, the rest by the lane.
func collectJobs(d *JobRing, done int) {
	for i := range evaluationJobs {
		d.countCollected(i >= done)
	}
}

func TestBackoffDoublesWhileWorkersDoNotRunJobs(t *testing.T) {
	d, now := absent(1).NewJobRing(8), int64(1e9)
	scratch := new(session.Scratch)
	for i, ms := range []int64{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
		if !d.Available(now) {
			t.Fatalf("not available before backoff %d", i)
		}
		for range evaluationJobs {
			d.Submit(&piece{})
			d.Collect(scratch)
		}
		rest := ms * int64(time.Millisecond)
		if d.Available(now) || d.Available(now+rest-1) || !d.Available(now+rest) {
			t.Errorf("backoff %d does not last %d ms", i, ms)
		}
		now += rest
	}
	if n := d.Stats().BackOffs; n != 9 {
		t.Errorf("got %d backoffs", n)
	}
}

func TestEvaluationStartsBackoff(t *testing.T) {
	for _, tt := range []struct {
		name      string
		done      int
		ran, lost time.Duration
		waits     int
		closes    bool
	}{
		{"workers run all jobs", evaluationJobs, time.Millisecond, 0, 0, false},
		{"workers run enough jobs", minByWorkers, time.Millisecond, 0, 0, false},
		{"workers run too few jobs", minByWorkers - 1, time.Millisecond, 0, 0, true},
		{"run delay of a third", evaluationJobs, 2 * time.Millisecond, time.Millisecond, 0, false},
		{"run delay above a third", evaluationJobs, 2 * time.Millisecond, time.Millisecond + 1, 0, true},
		{"one long wait", evaluationJobs, time.Millisecond, 0, 1, false},
		{"two long waits", evaluationJobs, time.Millisecond, 0, 2, true},
	} {
		d := absent(1).NewJobRing(8)
		d.Available(1)
		d.addThreadTime(int64(tt.ran), int64(tt.lost))
		d.policy.longWaits = tt.waits
		collectJobs(d, tt.done)
		if d.Available(1) == tt.closes {
			t.Errorf("%s: backs off = %v", tt.name, !tt.closes)
		}
	}
}

func TestTrustedJobRingToleratesOneBadEvaluation(t *testing.T) {
	d := absent(1).NewJobRing(8)
	d.Available(1)
	collectJobs(d, 0)
	collectJobs(d, 0)
	if d.policy.backoff != 2*minBackoff {
		t.Fatal(d.policy.backoff)
	}
	now := d.policy.closedUntil
	d.Available(now)
	for range trustedEvaluations {
		collectJobs(d, evaluationJobs)
	}
	if collectJobs(d, 0); !d.Available(now) {
		t.Error("one bad evaluation started a backoff")
	}
	if collectJobs(d, 0); d.Available(now+minBackoff-1) || !d.Available(now+minBackoff) {
		t.Error("the backoff time was not reset")
	}
}

func TestOnlyPersistentBacklogIsReported(t *testing.T) {
	d := absent(1).NewJobRing(8)
	for range 1000 {
		d.ReportBacklog(1)
		d.ReportBacklog(1)
		d.ReportBacklog(0) // a burst of three
	}
	if d.Backlogged() {
		t.Error("small bursts count as backlog")
	}
	for range backlogThreshold {
		d.ReportBacklog(1)
	}
	if !d.Backlogged() {
		t.Error("a persistent backlog is not reported")
	}
	for range maxBacklog {
		d.ReportBacklog(5)
	}
	for range 3 {
		d.ReportBacklog(-1)
	}
	if d.Backlogged() {
		t.Error("still backlogged long after catching up")
	}
}

func TestLongWaitsAreCounted(t *testing.T) {
	d := absent(1).NewJobRing(8)
	for n := 1; n <= 2*longWaitYields; n++ {
		d.yieldWhileWaiting(n)
	}
	if d.policy.longWaits != 1 {
		t.Errorf("got %d long waits, want 1", d.policy.longWaits)
	}
}
