// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// TestRivalIsFoundAndDamped: two agents with one node's name would change its key for all others, again and again.
func TestRivalIsFoundAndDamped(t *testing.T) {
	var r Rival
	now := time.Unix(1e9, 0)
	version := 0
	foreign := func() bool {
		version++
		return r.Observe(now, fmt.Sprint(version), "another")
	}
	for range 3 {
		if foreign() {
			t.Error("an earlier agent of this node is taken for a rival")
		}
	}
	if r.Writes != 0 {
		t.Error("an earlier agent of this node is taken for a rival")
	}
	r.Wrote(now, "this")
	if r.Observe(now, fmt.Sprint(version), "another"); r.Writes != 0 {
		t.Error("the version before the first own write is taken for a later one")
	}
	if r.Observe(now, "own", "this") || foreign() || foreign() || r.Wait(now) != 0 {
		t.Error("late writes of an earlier agent are taken for a rival")
	}
	if r.Observe(now, fmt.Sprint(version), "another") || r.Writes != 2 {
		t.Error("one write counts twice")
	}
	if !foreign() || foreign() {
		t.Error("a rival is not found, or found twice")
	}
	if name, present := r.Name(); name != "another" || !present || r.Wait(now) != 0 {
		t.Errorf("got %q, %v, wait %s: nothing says so at once", name, present, r.Wait(now))
	}
	r.Wrote(now, "this")
	for range 4 { // it goes on
		now = now.Add(4 * time.Minute)
		foreign()
		if wait := r.Wait(now); wait != time.Minute {
			t.Errorf("the next write is in %s", wait)
		}
		now = now.Add(time.Minute)
		if r.Wait(now) != 0 {
			t.Error("nothing is written any more")
		}
		r.Wrote(now, "this")
	}
	now = now.Add(rivalPeriod)
	r.Observe(now, fmt.Sprint(version), "another")
	if _, present := r.Name(); present || r.Wait(now) != 0 {
		t.Error("a rival that has gone damps for ever")
	}
}

func TestSameAnnouncementIgnoresWriterAndEmptyLists(t *testing.T) {
	a := v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeMesh, Writer: "one"}
	b := v1alpha1.AnnouncementSpec{Mode: v1alpha1.ModeMesh, Writer: "two", Endpoints: []v1alpha1.Endpoint{}, PodCIDRs: []v1alpha1.CIDR{}}
	if !Same(&a, &b) {
		t.Error("each start of an agent would make all others read")
	}
	if b.Gathers = true; Same(&a, &b) || b.Endpoints == nil {
		t.Error("a change is not one, or comparing changes its argument")
	}
}

// TestFullAnnouncementHasAllFields: a CRD that lacks a field is found by it.
func TestFullAnnouncementHasAllFields(t *testing.T) {
	for field, value := range reflect.ValueOf(Full()).Fields() {
		if value.IsZero() {
			t.Errorf("%s is not in it", field.Name)
		}
	}
}
