// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fill sets each counter below v to a number of its own, times factor.
func fill(v reflect.Value, next *uint64, factor uint64) {
	switch v.Kind() {
	case reflect.Uint64:
		*next++
		v.SetUint(*next * factor)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), next, factor)
		}
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i), next, factor)
		}
	case reflect.Map:
		*next++
		v.Set(reflect.ValueOf(map[string]uint64{"replay": *next * factor}))
	}
}

func filled(lanes int, factor uint64) *Stats {
	s := &Stats{Lanes: make([]LaneStats, lanes)}
	fill(reflect.ValueOf(s).Elem(), new(uint64), factor)
	return s
}

func TestCountersContinueFromPreviousEngine(t *testing.T) {
	got := filled(2, 1)
	got.Add(filled(2, 1))
	if diff := cmp.Diff(filled(2, 2), got); diff != "" {
		t.Error(diff)
	}
}

func TestCountersOfMissingLanesAreIgnored(t *testing.T) {
	got := filled(1, 1)
	got.Add(filled(2, 1))
	if len(got.Lanes) != 1 || got.Lanes[0].TxBytes != 2*filled(1, 1).Lanes[0].TxBytes {
		t.Errorf("%d lanes, %+v", len(got.Lanes), got)
	}
}
