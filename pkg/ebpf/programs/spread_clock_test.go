// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestTornClockIsReadAnew gives one member of the clock an old value, as a CPU may see it whose loads pass each other.
func TestTornClockIsReadAnew(t *testing.T) {
	m := newLaneModel(t, 4, time.Second, them6)
	clock := clockMap(t, m.s.Egress())
	for i := range 200 {
		m.step(them6, 1, 100)
		before, members := m.now, [2]uint64{}
		expect.NoError(t, clock.Lookup(uint32(0), &members))
		members[i%2] -= uint64(time.Second)
		expect.NoError(t, clock.Put(uint32(0), &members))
		if m.step(them6, 1, 100); m.now < before {
			t.Fatalf("member %d: the clock went back by %v", i%2, time.Duration(before-m.now))
		}
	}
}

// clockMap returns the map of a program's global variables, of which the clock is the only one.
func clockMap(t *testing.T, p *ebpf.Program) *ebpf.Map {
	t.Helper()
	info, err := p.Info()
	expect.NoError(t, err)
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		expect.NoError(t, err)
		t.Cleanup(func() { _ = m.Close() })
		if about, err := m.Info(); err == nil && strings.HasSuffix(about.Name, ".bss") {
			return m
		}
	}
	t.Fatal("the program has no global variables")
	return nil
}
