// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestPortChangesReuseBuffers attaches many ports in turn, as flaps of the interface do.
func TestPortChangesReuseBuffers(t *testing.T) {
	e, _ := newIdleEngine(2)
	const cycles = 10
	var ports [1 + cycles]underlay.Port
	for i := range ports {
		ports[i], _ = underlaytest.Pipe(2)
	}
	var before, after runtime.MemStats
	for i, port := range ports {
		if i == 1 { // the first port allocates what the others use
			runtime.ReadMemStats(&before)
		}
		expect.NoError(t, e.Attach(port))
		expect.NoError(t, e.Detach())
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / cycles; each > lane.MaxElement {
		t.Errorf("each port allocated %d bytes, want at most one buffer of %d", each, lane.MaxElement)
	}
}
